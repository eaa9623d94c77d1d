"""Advantages of completions: the reward less the mean of those that it is compared with, over their deviation.

    gathered         the completions of the same prompt group, on all ranks and microsteps
    per_rank         those of the group on the same rank
    per_microbatch   those of the group in the same cell
    by_view          runs of `generations` completions in gathered order, whatever their prompts: `view(-1, G)`

A = (R − mean)/(std + eps) with Bessel's correction, 0 for one member. The deviation is that of the members (`group`),
of the whole scope (`batch`: all completions, the rank's, the cell's), or left out with its division (`none`). Means and
variances are exact, the root has more digits than float64.
"""

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Literal

import numpy as np

from samestep.app.calculators.rl_weights.rollout import Ints, Rollout

Scope = Literal["gathered", "per_rank", "per_microbatch", "by_view"]
Scaling = Literal["group", "batch", "none"]
_ROOT_BITS = 256


def scopes(rollout: Rollout, generations: int | None) -> dict[Scope, tuple[Ints, Ints]]:
    """Of every completion the number of its members' set, and of its scope; (B,) and (B,)."""
    count = len(rollout.lengths)
    whole, rank = np.zeros(count, dtype=np.int64), rollout.cell // rollout.microsteps
    found: dict[Scope, tuple[Ints, Ints]] = {
        "gathered": (rollout.labels, whole),
        "per_rank": (rank * rollout.groups + rollout.labels, rank),
        "per_microbatch": (rollout.cell * rollout.groups + rollout.labels, rollout.cell),
    }
    if generations is not None and count % generations == 0:
        found["by_view"] = (np.arange(count) // generations, whole)
    return found


def advantages(
    rewards: list[Fraction], members: Ints, scope: Ints, scaling: Scaling, eps: Fraction
) -> list[float | None]:
    """One a completion; None where a deviation of 0 is divided by with eps 0."""
    means = {label: sum(held, Fraction(0)) / len(held) for label, held in _held(rewards, members).items()}
    centred = [reward - means[label] for reward, label in zip(rewards, members.tolist(), strict=True)]
    if scaling == "none":
        return [float(value) for value in centred]
    by = members if scaling == "group" else scope
    below = {label: _deviation(held) + eps for label, held in _held(rewards, by).items()}
    return [
        float(value / below[label]) if below[label] else None for value, label in zip(centred, by.tolist(), strict=True)
    ]


def _held(rewards: Sequence[Fraction], labels: Ints) -> dict[int, list[Fraction]]:
    held: dict[int, list[Fraction]] = {}
    for reward, label in zip(rewards, labels.tolist(), strict=True):
        held.setdefault(label, []).append(reward)
    return held


def _deviation(values: list[Fraction]) -> Fraction:
    """The standard deviation, its root to more digits than float64 has."""
    if len(values) == 1:
        return Fraction(0)
    mean = sum(values, Fraction(0)) / len(values)
    variance = sum(((value - mean) ** 2 for value in values), Fraction(0)) / (len(values) - 1)
    shift = _ROOT_BITS + max(0, variance.denominator.bit_length() - variance.numerator.bit_length())
    shift += shift % 2
    return Fraction(math.isqrt((variance.numerator << shift) // variance.denominator), 1 << shift // 2)
