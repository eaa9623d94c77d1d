"""One update with everything that is known of it: what was joined, how it fits, what its tokens weigh."""

from collections.abc import Sequence, Set

import numpy as np

from samestep.experiments.watch.joined import fitting, weighing
from samestep.experiments.watch.joined.fitting import EXPLAINED, Fit
from samestep.experiments.watch.joined.joining import Joined
from samestep.experiments.watch.joined.weighing import Tokens, Weighed
from samestep.experiments.watch.records import Loss

REPLICAS = {False: 1e-4, True: 1e-2}
"""Relative difference between two ranks' gradients, by low precision, from which they are different."""


class Evidence:
    """`full`: microbatches of a rank in a full window; `notices`: what was met on the way, with where."""

    def __init__(
        self,
        joined: Joined,
        before: Joined | None,
        full: int,
        low_precision: bool,
        objective: str,
        notices: Set[tuple[str, str]],
    ) -> None:
        self.joined = joined
        self.low_precision = low_precision
        self.objective = objective
        self.full = full
        self.notices = notices
        self.weighed: Weighed = weighing.weigh(joined)
        self.fits = self._fits(before)
        self.factors = self._factors()

    def _fits(self, before: Joined | None) -> list[Fit]:
        """One fit for each copy of the gradient where copies differ, else one; none where numbers are not finite."""
        copies = self.joined.copies
        if copies is None or not np.all(np.isfinite(copies.goals)) or not np.all(np.isfinite(self.joined.columns)):
            return []
        previous = before.copies if before is not None and self.joined.first.leaks else None
        many = len(copies.goals) if copies.difference > REPLICAS[self.low_precision] else 1
        return [
            fitting.fit(
                self.joined.columns,
                copies.goals[i],
                self.joined.names,
                self.low_precision,
                previous.stepped[min(i, len(previous.stepped) - 1)] if previous is not None else None,
            )
            for i in range(many)
        ]

    def _factors(self) -> list[list[float]]:
        """Of every backward, [rank][backward]: 0 if it was thrown away; of ranks that differ, in each rank's own."""
        table = [[0.0] * len(rank) for rank in self.joined.cells]
        for j, (r, k) in enumerate(self.joined.places):
            if self.fits:
                table[r][k] = float(self.fits[min(r, len(self.fits) - 1)].factors[j])
        return table

    @property
    def term(self) -> Sequence[Sequence[Tokens]]:
        """The tokens that are judged, [rank][backward]."""
        if self.weighed.terms:
            return self.weighed.terms[0]
        nothing = Tokens("", None, np.empty(0), np.empty(0), None, "targets", 0)
        return [[nothing for _ in rank] for rank in self.joined.cells]

    @property
    def differing(self) -> bool:
        """The ranks step with different gradients."""
        return len(self.fits) > 1

    @property
    def explained(self) -> bool:
        """The gradient is a sum of the backwards that were seen; of tensors that are off, by factors of their own."""
        allowed = EXPLAINED[self.low_precision]
        residuals = [r for fit in self.fits for r in (fit.residual, *(each.residual for each in fit.off))]
        return all(residual <= allowed for residual in residuals)

    @property
    def tolerance(self) -> float:
        """Relative difference up to which two weights are the same: rounding, and what the residual leaves open."""
        fit = self.fits[0]
        typical = abs(fit.one_factor) or float(np.abs(fit.factors).max(initial=0.0)) or 1.0
        error = fit.residual if fit.kind == "one" else float(fit.errors.max(initial=0.0)) / typical
        return min(max(2e-5, 10 * error), 0.05 if self.low_precision else 1e-3)

    @property
    def scale(self) -> float | None:
        """The loss scale, where there was one."""
        return next((cell.scale for rank in self.joined.cells for cell in rank if cell.scale), None)

    @property
    def microsteps(self) -> int:
        """Backwards of the busiest rank that were not thrown away."""
        return max((sum(not cell.discarded for cell in rank) for rank in self.joined.cells), default=0)

    def noticed(self, code: str) -> str | None:
        """Where something was met; None if it was not."""
        return next((where for name, where in sorted(self.notices) if name == code), None)

    def coupled(self) -> Loss | None:
        """A loss that contrasts the rows of a batch, if there is one."""
        losses = (loss for rank in self.joined.cells for cell in rank for loss in cell.losses)
        return next((loss for loss in losses if loss.coupled), None)

    def unseen(self) -> tuple[str, ...]:
        """Parameters that no backward brought a gradient."""
        brought = {name for rank in self.joined.cells for cell in rank for name in cell.contribution}
        asked = set(self.joined.names) | {name for update in self.joined.updates for name in update.missing}
        return tuple(sorted(asked - brought))
