"""A term under one weighting: what its units weigh together, whether alike, and what it adds to the loss.

Sums over cells are made once for each pair of `above` and `below`, for recipes differ mostly by a factor; they are
exact for small windows and float64 for large ones. Whether weights are alike is decided on whole numbers in both.
"""

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from samestep.app.calculators.loss_terms.inputs import CountedTerm, Counts, Loss
from samestep.app.calculators.loss_terms.recipes import RecipeName, Units, Weighting
from samestep.app.contract.arrays import Floats
from samestep.app.contract.models import Reason
from samestep.app.mathematics.window import Numbers, exact_quotient_sum, exact_sum, total

Number = Fraction | float


@dataclass(frozen=True)
class Weighed:
    """`weights` (C,) of one unit, coefficient included, 0 in cells without units, None in large windows; their `total`
    over all `units`, its `multiple` of the coefficient, whether they are `uniform` and `right`, and the term's part of
    the loss."""

    units: int
    coefficient: Fraction
    weights: Numbers | None
    total: Number
    multiple: Number
    uniform: bool
    right: bool
    value: Number


class Scales:
    """One term with every weighting that it is asked for."""

    def __init__(self, loss: Loss, term: CountedTerm) -> None:
        self.term, self.exact, self._listed = term, loss.is_exact, loss.is_listed
        self.units = Units(loss, term)
        self._filled = term.counts > 0
        self._sums: dict[tuple[int, int], tuple[Number, Number, bool]] = {}

    @property
    def mean(self) -> Number | None:
        """ΣS/ΣN; None for a term without units."""
        if not self.units.total:
            return None
        mean: Number = total(self.term.sums) / self.units.total
        return mean

    def weighed(self, recipe: RecipeName) -> Weighed | Reason:
        """The term under a recipe, or why it has no weights there."""
        weighting = self.units.weighting(recipe)
        if isinstance(weighting, str):
            return weighting
        factor = weighting.factor if self.exact else float(weighting.factor)
        coefficient = self.term.coefficient if self.exact else float(self.term.coefficient)
        units, losses, alike = self._summed(weighting)
        nothing = not self.term.coefficient  # then every weight is 0, as it ought to be
        return Weighed(
            units=self.units.total,
            coefficient=self.term.coefficient,
            weights=self._weights(weighting) if self._listed else None,
            total=units * factor * coefficient,
            multiple=units * factor,
            uniform=alike or nothing,
            right=nothing or (alike and self._first_weight(weighting) == self._right_weight),
            value=losses * factor * coefficient,
        )

    def _weights(self, weighting: Weighting) -> Numbers:
        """factor·coefficient·above/below where there are units, else 0; small windows make few different ones."""
        scale = weighting.factor * self.term.coefficient
        if not self.exact:
            return self._ratio(weighting) * float(scale)
        one = np.ones_like(self.term.counts)
        above = np.where(self.term.counts > 0, one if weighting.above is None else weighting.above, 0).tolist()
        below = (one if weighting.below is None else weighting.below).tolist()
        known = {(a, b): Fraction(a, b) * scale for a, b in set(zip(above, below, strict=True))}
        return np.array([known[pair] for pair in zip(above, below, strict=True)], dtype=object)

    def _ratio(self, weighting: Weighting) -> Floats:
        """above/below in float64 where there are units, else 0."""
        above = self._filled if weighting.above is None else self._filled * weighting.above
        return above.astype(np.float64) if weighting.below is None else np.asarray(above / weighting.below)

    def _summed(self, weighting: Weighting) -> tuple[Number, Number, bool]:
        """Σ n·above/below, Σ S·above/below, and whether above/below is one ratio for all units."""
        key = id(weighting.above), id(weighting.below)
        if key not in self._sums:
            self._sums[key] = (*self._both_sums(weighting), _alike(weighting, self._filled))
        return self._sums[key]

    def _both_sums(self, weighting: Weighting) -> tuple[Number, Number]:
        counts, sums = self.term.counts, self.term.sums
        if weighting.above is None and weighting.below is None:
            return self.units.total, total(sums)
        if not self.exact:
            ratio = self._ratio(weighting)
            return float(np.einsum("i,i", counts, ratio)), float(np.einsum("i,i", sums, ratio))
        above = 1 if weighting.above is None else weighting.above.astype(object)
        return _quotients(counts.astype(object) * above, weighting.below), _quotients(sums * above, weighting.below)

    def _first_weight(self, weighting: Weighting) -> Fraction:
        """What a unit of the first cell that has any weighs, without the coefficient; 0 where none has."""
        if not self.units.total:
            return Fraction(0)
        first = int(np.argmax(self._filled))
        above, below = (1 if a is None else int(a[first]) for a in (weighting.above, weighting.below))
        return weighting.factor * Fraction(above, below)

    @property
    def _right_weight(self) -> Fraction:
        return Fraction(1, self.units.total) if self.units.total else Fraction(0)


def _quotients(values: Numbers, below: Counts | None) -> Fraction:
    return exact_sum(values) if below is None else exact_quotient_sum(values, below.tolist())


def _alike(weighting: Weighting, filled: NDArray[np.bool_]) -> bool:
    above, below = (a if a is None or filled.all() else a[filled] for a in (weighting.above, weighting.below))
    if above is not None and below is not None:
        common = np.gcd(above, below)
        above, below = above // common, below // common
    return all(a is None or not len(a) or bool((a == a[0]).all()) for a in (above, below))
