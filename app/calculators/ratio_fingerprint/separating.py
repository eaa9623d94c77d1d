"""Which numbers of ranks and microsteps would give two confused factors different values."""

from collections.abc import Sequence
from itertools import combinations
from math import gcd

from samestep.app.calculators.ratio_fingerprint.monomials import Monomial

_APART = 1.05
_REACH = 6


def coprime_choice(factors: Sequence[Monomial], ranks: int, microsteps: int, count: float) -> tuple[int, int] | None:
    """The nearest coprime (P, K), both 2 or more, at which all factors differ; None where none nearby does.

    The window's count is taken to stay what it is.
    """
    choices = [
        (p, k)
        for p in range(max(2, ranks - _REACH), ranks + _REACH + 1)
        for k in range(max(2, microsteps - _REACH), microsteps + _REACH + 1)
        if gcd(p, k) == 1
    ]
    choices.sort(key=lambda pair: (abs(pair[0] - ranks) + abs(pair[1] - microsteps), pair))
    distinct = list(dict.fromkeys(factors))
    for p, k in choices:
        values = [factor.value(p, k, count) for factor in distinct]
        if all(max(x, y) > _APART * min(x, y) for x, y in combinations(values, 2)):
            return p, k
    return None
