"""What may have gone wrong, as hypotheses: every fault alone, and two together where the second one can be seen.

A hypothesis is a weighting of cells (see `window_faults`, `lost_cells`, `rescaled`), a factor on the gradient (see
`monomials`), a turned sign and a wrong norm. Norms are wrong by a rank that looks at its own shard (1/sqrt(P) where the
shards are equal, else the share that they have) or by copies that count once a rank (sqrt(P) where everything is
copied, sqrt(1 + (P - 1)·s) where the copied part has the share s of the square).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

from samestep.app.calculators.ratio_fingerprint.lost_cells import lost_cells
from samestep.app.calculators.ratio_fingerprint.monomials import (
    ONE,
    OVER_ROOT_OF_P,
    PAIRS,
    ROOT_OF_P,
    SINGLES,
    Monomial,
)
from samestep.app.calculators.ratio_fingerprint.rescaled import rescaled
from samestep.app.calculators.ratio_fingerprint.target import Target
from samestep.app.calculators.ratio_fingerprint.window_faults import Counts, Units, Weighting, weightings
from samestep.app.contract.arrays import Floats

LOSS_TOLERANCE = 1e-3
"""A loss is logged with few digits, and often smoothed."""
_FAR, _FACTOR_APART = 0.5, 1.5
"""A weighting is tried together with another fault if, scaled, it comes at least this near what was seen."""
_OVER_P = SINGLES[1]

On = Literal["gradient", "norm", "loss"]
Seen = tuple[float, float]


@dataclass(frozen=True)
class Evidence:
    """What is known: the window, and (reference, observed) values of loss, norm and gradient entries.

    `gradient` and `loss` are the right ones where they are known, seen again or not; `whole` says that the entries are
    the whole gradient, so that they determine its norm; `replicated` is the norm of the part that every rank holds.
    `rounding` is the relative error that the digits of what was seen leave open.
    """

    window: Counts
    units: Units
    seen_loss: Seen | None = None
    seen_norm: Seen | None = None
    seen_gradient: tuple[Floats, Floats] | None = None
    gradient: Floats | None = None
    loss: float | None = None
    whole: bool = False
    replicated: float | None = None
    rounding: float = 0.0

    @cached_property
    def weightings(self) -> list[Weighting]:
        return weightings(self.window, self.units, self.gradient, self.loss)

    @property
    def loss_alone(self) -> bool:
        return self.seen_norm is None and self.seen_gradient is None

    def value(self, factor: Monomial) -> float:
        return factor.value(self.window.ranks, self.window.microsteps, self.window.total or 1.0)

    def factors(self, choices: tuple[Monomial, ...]) -> list[Monomial]:
        """The factors that exist here: no P on one rank, no K without accumulation, no N unless it is known."""
        has = {"p": self.window.ranks > 1, "k": self.window.microsteps > 1, "n": self.window.total not in (0.0, 1.0)}
        return [f for f in choices if all(has[name] or not getattr(f, name) for name in has)]


@dataclass(frozen=True)
class Hypothesis:
    """One fault or two. `norm_code` names a wrong norm with its factor or, where that is no monomial, `norm_value`."""

    weighting: Weighting | None = None
    factor: Monomial = ONE
    flipped: bool = False
    norm_code: str = ""
    norm_factor: Monomial = ONE
    norm_value: float | None = None
    norm_place: tuple[int, ...] = ()
    loss_factor: Monomial = ONE
    also_called: str = ""

    @property
    def cost(self) -> int:
        scaled = 0 if self.factor == ONE else 1 if self.factor in SINGLES else 2
        parts = self.weighting, self.flipped, self.norm_code, self.loss_factor != ONE
        return scaled + sum(map(bool, parts))

    @property
    def codes(self) -> tuple[str, ...]:
        """The faults by name, none for the right update."""
        codes = [self.weighting.code] if self.weighting else []
        if self.also_called:
            return (self.also_called,)
        codes += ["sign_flip"] if self.flipped else []
        codes += [self.norm_code] if self.norm_code else []
        return (*codes, *(["scale"] if self.factor != ONE or self.loss_factor != ONE else []))

    @property
    def on(self) -> On:
        """What the factor is seen on."""
        return "norm" if self.norm_code else "loss" if self.loss_factor != ONE and self.factor == ONE else "gradient"

    @property
    def written_factor(self) -> str | None:
        """The factor in words, None where no factor describes the fault."""
        if self.on == "loss":
            return str(self.loss_factor)
        if self.norm_value is not None:
            return "sqrt(1+(P-1)*s)" if self.norm_code == "copies_counted" else None
        factor = self.factor * self.norm_factor
        if self.weighting and factor == ONE and not self.flipped:
            return None
        return ("-" if self.flipped else "") + str(factor)

    @property
    def key(self) -> tuple[object, ...]:
        """What is alike in hypotheses that differ only by name."""
        w = self.weighting
        weighting = w and (w.code, w.place, w.places, w.form, w.base)
        norm = self.norm_code, self.norm_place
        return weighting, self.factor, self.flipped, norm, self.loss_factor


def hypotheses(evidence: Evidence) -> Iterator[Hypothesis]:
    """The right update, every fault alone, and two together where the second one can be seen."""
    singles = evidence.factors(SINGLES)
    yield Hypothesis()
    yield Hypothesis(flipped=True)
    for factor in singles:
        yield Hypothesis(factor=factor)
        if evidence.seen_gradient is not None or evidence.seen_norm is None:
            yield Hypothesis(factor=factor, flipped=True)
    yield from (Hypothesis(factor=factor) for factor in evidence.factors(PAIRS))
    norms = list(_norms(evidence))
    yield from norms
    yield from (replace(norm, factor=factor) for norm in norms for factor in singles)
    if evidence.seen_gradient is not None:
        yield from (replace(norm, flipped=True) for norm in norms)
    for weighting in evidence.weightings:
        yield Hypothesis(weighting=weighting)
        yield from _crossed(weighting, singles, norms, evidence)
    yield from (Hypothesis(weighting=weighting) for weighting in _several_cells(evidence))
    if (owned := _owned(evidence)) is not None:
        yield Hypothesis(weighting=owned)
    yield from _logged(evidence, singles)
    if _OVER_P in singles:
        yield Hypothesis(factor=_OVER_P, also_called="detached_remote")


def _several_cells(evidence: Evidence) -> Iterator[Weighting]:
    """Faults of more than one cell, where cells are known one by one; held against the entries that were seen, or the
    norm, if the entries that are known of cells are all there are."""
    window, gradients = evidence.window, evidence.units.gradients
    shape = (window.ranks, window.microsteps)
    if window.right is None or gradients is None or window.right.shape != shape or len(gradients) != window.right.size:
        return
    gradient = None if evidence.seen_gradient is None else evidence.seen_gradient[1]
    norm = evidence.seen_norm[1] if evidence.seen_norm is not None and evidence.whole else None
    if gradient is None and norm is None:
        return
    parts, target = window.right.reshape(-1, 1) * gradients, Target(gradient, norm)
    yield from lost_cells(window.right, parts, target)
    if window.microsteps > 1:
        yield from rescaled(parts.reshape(*shape, -1).sum(axis=0), window, target)


def _crossed(
    weighting: Weighting, singles: list[Monomial], norms: list[Hypothesis], evidence: Evidence
) -> Iterator[Hypothesis]:
    """A weighting together with a turned sign, a factor or a wrong norm: those that come near what was seen.

    A rank that is not reduced knows no factor P.
    """
    factors = [f for f in singles if weighting.code != "not_reduced" or not f.p]
    if evidence.seen_gradient is not None and weighting.gradient is not None:
        seen = evidence.seen_gradient[1]
        square = float(weighting.gradient @ weighting.gradient)
        slope = float(seen @ weighting.gradient) / square if square else 0.0
        if not slope or distance(slope * weighting.gradient, seen) > _FAR:
            return
        factors = [f for f in factors if 1 / _FACTOR_APART < evidence.value(f) / abs(slope) < _FACTOR_APART]
    yield Hypothesis(weighting=weighting, flipped=True)
    yield from (Hypothesis(weighting=weighting, factor=factor) for factor in factors)
    yield from (replace(norm, weighting=weighting) for norm in norms if not norm.norm_place)


def _norms(evidence: Evidence) -> Iterator[Hypothesis]:
    """Norms over one rank's shard, equal or as the gradient is cut, and norms that count copies on every rank."""
    ranks = evidence.window.ranks
    if evidence.seen_norm is None or ranks == 1:
        return
    yield Hypothesis(norm_code="local_norm", norm_factor=OVER_ROOT_OF_P)
    gradient, norm = evidence.gradient, evidence.seen_norm[0]
    if evidence.replicated is not None and norm:
        share = (evidence.replicated / norm) ** 2
        yield Hypothesis(norm_code="copies_counted", norm_value=math.sqrt(1 + (ranks - 1) * share))
    else:
        yield Hypothesis(norm_code="copies_counted", norm_factor=ROOT_OF_P)
    if evidence.whole and gradient is not None and len(gradient) >= ranks and norm:
        length = -(-len(gradient) // ranks)
        for r in range(min(ranks, 64)):
            shard = float(np.linalg.norm(gradient[r * length : (r + 1) * length]))
            yield Hypothesis(norm_code="local_norm", norm_value=shard / norm, norm_place=(r,))


def _owned(evidence: Evidence) -> Weighting | None:
    """Every entry with the part of one rank alone, its owner's: what is left where no gradient crosses ranks.

    The owner of an entry is the rank whose part is nearest; nothing is left to fit if they are all near. Where all have
    the same owner, the others' cells are missing, which goes by that name.
    """
    window, gradients = evidence.window, evidence.units.gradients
    if evidence.seen_gradient is None or gradients is None or window.right is None or window.ranks == 1:
        return None
    shares = window.right.reshape(-1, 1) * gradients if len(gradients) == window.right.size else None
    if shares is None:
        shares = window.right.sum(axis=1, keepdims=True) * gradients
    by_rank = shares.reshape(window.ranks, -1, shares.shape[1]).sum(axis=1)
    seen = evidence.seen_gradient[1]
    owners = np.abs(by_rank - seen).argmin(axis=0)
    parts = np.take_along_axis(by_rank, owners[None], axis=0)[0]
    near = distance(parts, seen) <= LOSS_TOLERANCE and len(set(owners.tolist())) > 1
    return Weighting("detached_remote", form="owner", gradient=parts) if near else None


def _logged(evidence: Evidence, singles: list[Monomial]) -> Iterator[Hypothesis]:
    """A loss that is logged with a factor of its own, which the gradient does not have."""
    if evidence.loss_alone or evidence.seen_loss is None or not evidence.seen_loss[0]:
        return
    ratio = evidence.seen_loss[1] / evidence.seen_loss[0]
    for factor in singles:
        value = evidence.value(factor)
        if abs(ratio - value) <= LOSS_TOLERANCE * abs(value):
            yield Hypothesis(loss_factor=factor)
            yield from (Hypothesis(factor=other, loss_factor=factor) for other in singles if other != factor)


def distance(one: Floats, other: Floats) -> float:
    """|one - other| relative to the larger of the two; 0 where both are 0."""
    size = float(max(np.abs(one).max(), np.abs(other).max()))
    if size == 0 or not math.isfinite(size):
        return 0.0 if size == 0 else math.inf
    one, other = one / size, other / size
    larger = max(float(np.linalg.norm(one)), float(np.linalg.norm(other)))
    return float(np.linalg.norm(one - other)) / larger
