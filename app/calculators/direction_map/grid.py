"""For which counts the mean of two replica means points the other way than the mean over all tokens.

Words and symbols: replicas A and B hold a and b valid tokens (whole numbers) with the gradients g_A and g_B per token.

    right       g* = (a·g_A + b·g_B) / (a + b)        undefined when a + b = 0
    replica mean    (g_A + g_B) / 2                   undefined when a = 0 or b = 0, for 0/0 is no mean
    ratio           (g_A + g_B)·(a + b) / (2·(a·g_A + b·g_B))

The ratio depends on b/a alone: a map over (a, b) consists of sectors from the corner, and the sign changes across the
line a·g_A + b·g_B = 0. Everything here is exact.
"""

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

Kind = Literal["agree", "flipped", "zero_reference", "vanishes", "undefined"]
"""How the replica mean lies to the reference: same sign, other sign, no reference direction to keep (g* = 0), no
direction of its own (replica mean 0, g* not), or undefined."""

Magnitude = Literal["same", "within_2", "within_4", "beyond_4"]
"""By which factor the two differ, up or down and whatever the sign."""


@dataclass(frozen=True)
class Direction:
    """Both gradients at one pair of counts; `ratio` is replica mean / reference, None where that is undefined, and
    `magnitude` None where there is no ratio or it is 0."""

    kind: Kind
    reference: Fraction | None
    replica_mean: Fraction | None
    ratio: Fraction | None
    magnitude: Magnitude | None


def direction(a: int, b: int, gradient_a: Fraction, gradient_b: Fraction) -> Direction:
    """The two gradients at counts a and b."""
    reference = (a * gradient_a + b * gradient_b) / (a + b) if a + b else None
    if a == 0 or b == 0 or reference is None:
        return Direction("undefined", reference, None, None, None)
    replica_mean = (gradient_a + gradient_b) / 2
    if reference == 0:
        return Direction("zero_reference", reference, replica_mean, None, None)
    ratio = replica_mean / reference
    if ratio == 0:
        return Direction("vanishes", reference, replica_mean, ratio, None)
    return Direction("agree" if ratio > 0 else "flipped", reference, replica_mean, ratio, _magnitude(abs(ratio)))


def _magnitude(size: Fraction) -> Magnitude:
    larger, smaller = max(size.numerator, size.denominator), min(size.numerator, size.denominator)
    if larger == smaller:
        return "same"
    return "within_2" if larger <= 2 * smaller else "within_4" if larger <= 4 * smaller else "beyond_4"


def direction_map(target_a: Fraction, target_b: Fraction, theta: Fraction, size: int) -> list[list[Direction]]:
    """The map for a and b from 0 to `size` with losses ½(θ − t)² per token: entry [a][b]."""
    gradient_a, gradient_b = theta - target_a, theta - target_b
    counts = range(size + 1)
    return [[direction(a, b, gradient_a, gradient_b) for b in counts] for a in counts]
