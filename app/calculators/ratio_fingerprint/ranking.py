"""Which faults explain the numbers that were seen: every one alone and two together, ranked by fit.

Each hypothesis (see `hypotheses`) predicts the observed gradient entries, gradient norm and loss from the right
ones. Its error e is the root mean square of the relative errors of gradient and norm (of the loss, if that is all there
is), and

    weight = prior / max(e, FLOOR) / (1 + (e/NOISE)²)        fit = weight / Σ weights

which is a posterior for an unknown noise of at most about a per cent: exact numbers separate sharply, rounded ones
softly. One fault has the prior 1, two together 0.1, so that two are named only where they fit ten times better. A loss
that a hypothesis does not predict costs a factor, but never outweighs the gradient: what is logged is often scaled by
itself. `unknown` stands for all that is not listed, as if it missed by two per cent.

Two hypotheses are tied where they predict the same, or miss by about as much and are about as likely: then these
numbers cannot tell them apart. Nor can they where the best one misses by more than rounding and weightings, which
change a ratio by any few per cent, are not known.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from samestep.app.calculators.ratio_fingerprint.hypotheses import (
    LOSS_TOLERANCE,
    Evidence,
    Hypothesis,
    distance,
    hypotheses,
)
from samestep.app.calculators.ratio_fingerprint.monomials import ONE
from samestep.app.contract.arrays import Floats

FLOOR = 1e-6
"""Relative errors below this are rounding of what was typed."""
_EXACT = 1e-4
_NOISE = 0.01
"""What rounding, low precision and smoothing may amount to; what misses by much more is better `unknown`."""
_NEAR = 3.0
_LIKELY = 0.2
_LOSS_MISSED = 0.1
_UNSEEN = 0.1
_PAIR = 0.1
_SAME_FACTOR = 0.2
_FREE_BASE = 0.1
_UNKNOWN = 10.0
_FREE, _FREE_BESIDE_A_RIGHT_GRADIENT = 12.0, 60.0
"""Weights of what explains any number: nothing listed, and faults with a free number in them."""


@dataclass(frozen=True)
class Candidate:
    """A hypothesis with what it predicts, how far that is from what was seen, and its weight.

    `hypothesis` is None for `unknown`; `free` marks faults that explain any number by one of their own (`share`).
    """

    hypothesis: Hypothesis | None
    error: float
    weight: float
    norm: float | None = None
    loss: float | None = None
    gradient: Floats | None = None
    loss_fits: bool = True
    free: bool = False
    share: float | None = None


@dataclass(frozen=True)
class Ranking:
    """All candidates, best first, and those that are tied with the first.

    `inexact`: the best one misses by more than the digits leave open, and no gradients of ranks or cells are known that
    would show a wrong weighting beside it.
    """

    candidates: list[Candidate]
    tied: list[Candidate] = field(default_factory=list)
    loss_alone: bool = False
    inexact: bool = False

    @property
    def best(self) -> Candidate:
        return self.candidates[0]

    @property
    def same(self) -> bool:
        """Whether the right update explains the numbers best."""
        return self.best.hypothesis is not None and not self.best.hypothesis.codes

    @property
    def cannot_tell(self) -> bool:
        """Whether another fault does as well, or none does, or only an equal loss was seen, which proves nothing."""
        nothing = self.loss_alone and self.same
        return bool(self.tied) or self.best.free or self.best.hypothesis is None or nothing or self.inexact


def rank(evidence: Evidence) -> Ranking:
    """Weigh every hypothesis against the evidence."""
    found = [_judged(hypothesis, evidence) for hypothesis in hypotheses(evidence)]
    found += _free(evidence)
    candidates = [c for c in found if c is not None and math.isfinite(c.error)]
    candidates.append(Candidate(None, 0.0, _UNKNOWN))
    candidates.sort(key=lambda c: -c.weight)
    best = candidates[0]
    named = best.hypothesis is not None and not best.free
    inexact = named and evidence.units.gradients is None and best.error > max(_EXACT, evidence.rounding)
    return Ranking(candidates, _tied(candidates), evidence.loss_alone, inexact)


def _tied(candidates: list[Candidate]) -> list[Candidate]:
    """What predicts the same as the best candidate, or misses by about as much and is about as likely; other names for
    the best one do not count."""
    best = candidates[0]
    if best.hypothesis is None or best.free:
        return []
    key, reach, equal = best.hypothesis.key, _NEAR * max(best.error, FLOOR), best.error + _NEAR * FLOOR
    return [
        c
        for c in candidates
        if c.hypothesis is not None and not c.free and c.hypothesis.key != key
        if c.loss_fits >= best.loss_fits
        if c.error <= equal or (c.error <= reach and c.weight >= _LIKELY * best.weight)
    ]


def _judged(hypothesis: Hypothesis, evidence: Evidence) -> Candidate | None:
    """The hypothesis against the evidence; None where it predicts nothing that was seen."""
    gradient, norm = _predicted_gradient(hypothesis, evidence), _predicted_norm(hypothesis, evidence)
    errors = []
    if evidence.seen_gradient is not None and gradient is not None:
        errors.append(distance(gradient, evidence.seen_gradient[1]))
    if evidence.seen_norm is not None and norm is not None:
        errors.append(distance(np.array([norm]), np.array([evidence.seen_norm[1]])))
    if not errors and not evidence.loss_alone:
        return None
    error = math.sqrt(sum(e * e for e in errors) / len(errors)) if errors else 0.0
    loss, loss_error = _nearest_loss(hypothesis, evidence)
    if evidence.loss_alone:
        if loss_error is None:
            return None
        error, loss_error = loss_error, None
    fits = loss_error is None or loss_error <= max(LOSS_TOLERANCE, _NEAR * error)
    prior = _PAIR if hypothesis.cost > 1 else _SAME_FACTOR if hypothesis.also_called else 1.0
    prior *= _place_prior(hypothesis, evidence)
    if hypothesis.flipped and evidence.seen_gradient is None and not evidence.loss_alone:
        prior *= _UNSEEN
    weight = prior / max(error, FLOOR) / (1 + (error / _NOISE) ** 2) * (1 if fits else _LOSS_MISSED)
    return Candidate(hypothesis, error, weight, norm, loss, gradient, fits)


def _place_prior(hypothesis: Hypothesis, evidence: Evidence) -> float:
    """Faults of one place among many share one prior; of many sets, which several numbers tell apart, by the root."""
    if hypothesis.norm_place:
        return 1 / evidence.window.ranks
    if hypothesis.weighting and hypothesis.weighting.form == "owner":
        return 0.5 / evidence.window.ranks
    if hypothesis.weighting and hypothesis.weighting.among > 1:
        return (_FREE_BASE if hypothesis.weighting.free else 1.0) / math.sqrt(hypothesis.weighting.among)
    if hypothesis.weighting and hypothesis.weighting.place:
        return 1 / max(evidence.window.ranks * evidence.window.microsteps, 2)
    return 1.0


def _predicted_gradient(hypothesis: Hypothesis, evidence: Evidence) -> Floats | None:
    base = evidence.gradient if hypothesis.weighting is None else hypothesis.weighting.gradient
    if base is None:
        return None
    return base * (evidence.value(hypothesis.factor) * (-1.0 if hypothesis.flipped else 1.0))


def _predicted_norm(hypothesis: Hypothesis, evidence: Evidence) -> float | None:
    if evidence.seen_norm is None:
        return None
    base: float | None = evidence.seen_norm[0]
    weighting = hypothesis.weighting
    if weighting is not None and not weighting.alike:
        whole = evidence.whole and weighting.gradient is not None
        base = float(np.linalg.norm(weighting.gradient)) if whole and weighting.gradient is not None else None
    if base is None:
        return None
    wrong = evidence.value(hypothesis.norm_factor) if hypothesis.norm_value is None else hypothesis.norm_value
    return base * evidence.value(hypothesis.factor) * wrong


def _nearest_loss(hypothesis: Hypothesis, evidence: Evidence) -> tuple[float | None, float | None]:
    """The logged loss that the hypothesis allows and that is nearest to the seen one, and its relative error.

    A fault of the gradient may or may not show in the loss, or show one of its factors only; where the loss is all that
    was seen, it must.
    """
    if evidence.seen_loss is None or not evidence.seen_loss[0]:
        return None, None
    right, seen = evidence.seen_loss
    weighting, factor = hypothesis.weighting, hypothesis.factor
    bases = [right]
    if weighting is not None and not weighting.alike:
        bases = [] if weighting.loss is None else [weighting.loss] if evidence.loss_alone else [weighting.loss, right]
    if hypothesis.loss_factor != ONE:
        factors = [evidence.value(hypothesis.loss_factor)]
    elif evidence.loss_alone:
        factors = [evidence.value(factor)]
    else:
        factors = [1.0, *(evidence.value(part) for part in (factor, *factor.elements()))]
    signs = [-1.0] if hypothesis.flipped and evidence.loss_alone else [1.0, -1.0] if hypothesis.flipped else [1.0]
    choices = [base * factor * sign for base in bases for factor in factors for sign in signs]
    if not choices:
        return None, None
    nearest = min(choices, key=lambda choice: abs(choice - seen))
    return nearest, distance(np.array([nearest]), np.array([seen]))


def _free(evidence: Evidence) -> Iterator[Candidate]:
    """Faults that explain a number by a share of their own, which a further number would settle."""
    norm, gradient = evidence.seen_norm, evidence.seen_gradient
    beside = gradient is not None and distance(*gradient) <= _NEAR * FLOOR
    if norm is not None and norm[0] and evidence.window.ranks > 1 and (beside or gradient is None):
        square, ranks = (norm[1] / norm[0]) ** 2, evidence.window.ranks
        weight = _FREE_BESIDE_A_RIGHT_GRADIENT if beside else _FREE
        if 0 < square < 1:
            yield _shared("local_norm", square, weight, norm[1])
        if 1 < square < ranks and evidence.replicated is None:
            yield _shared("copies_counted", (square - 1) / (ranks - 1), weight, norm[1])
    if gradient is not None and len(gradient[0]) > 1 and evidence.window.ranks > 1:
        moved = gradient[0] != 0
        kept = np.abs(gradient[1] - gradient[0]) <= _NEAR * FLOOR * np.abs(gradient[0])
        if kept[moved].any() and not kept[moved].all():
            share = float(kept[moved].mean())
            yield Candidate(
                Hypothesis(also_called="detached_remote"), 0.0, _FREE, free=True, share=share, gradient=gradient[1]
            )


def _shared(code: str, share: float, weight: float, norm: float) -> Candidate:
    return Candidate(Hypothesis(norm_code=code, norm_value=share), 0.0, weight, norm=norm, free=True, share=share)
