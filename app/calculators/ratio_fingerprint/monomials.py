"""Factors that are products of powers of P, K and N: what a misplaced division or multiplication leaves behind.

P is the number of replicas, K the microsteps of a window, N its count. The eleven single mistakes are P, 1/P, K, 1/K,
P·K, 1/(P·K), N, 1/N, N/P, P² and 1/P²; two of them together are products of two.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations

_HALF = Fraction(1, 2)


@dataclass(frozen=True)
class Monomial:
    """P^p · K^k · N^n; p may be half an integer (norms)."""

    p: Fraction = Fraction(0)
    k: Fraction = Fraction(0)
    n: Fraction = Fraction(0)

    def __mul__(self, other: "Monomial") -> "Monomial":
        return Monomial(self.p + other.p, self.k + other.k, self.n + other.n)

    def elements(self) -> list["Monomial"]:
        """The single powers that it holds: P and 1/K of P²/K."""
        signs = [
            (name, 1 if power > 0 else -1) for name, power in (("p", self.p), ("k", self.k), ("n", self.n)) if power
        ]
        return [Monomial(**{name: Fraction(sign)}) for name, sign in signs]

    def value(self, ranks: int, microsteps: int, count: float) -> float:
        """The number; infinite where float64 cannot hold it."""
        try:
            powers = math.pow(ranks, self.p), math.pow(microsteps, self.k), math.pow(count, self.n)
            return powers[0] * powers[1] * powers[2]
        except OverflowError:
            return math.inf

    def __str__(self) -> str:
        """`1/P`, `P*K`, `N/P`, `P^2`, `1/sqrt(P)`."""
        above, below = self._side(1), self._side(-1)
        if not below:
            return "*".join(above) or "1"
        divisor = below[0] if len(below) == 1 else "(" + "*".join(below) + ")"
        return ("*".join(above) or "1") + "/" + divisor

    def _side(self, sign: int) -> list[str]:
        names = [("P", self.p), ("K", self.k), ("N", self.n)]
        return [_power(name, abs(power)) for name, power in names if power * sign > 0]


def _power(name: str, power: Fraction) -> str:
    if power == _HALF:
        return f"sqrt({name})"
    return name if power == 1 else f"{name}^{power}" if power.denominator == 1 else f"{name}^({power})"


def _of(p: int, k: int = 0, n: int = 0) -> Monomial:
    return Monomial(Fraction(p), Fraction(k), Fraction(n))


ONE = Monomial()
SINGLES = (
    _of(1),
    _of(-1),
    _of(0, 1),
    _of(0, -1),
    _of(1, 1),
    _of(-1, -1),
    _of(0, 0, 1),
    _of(0, 0, -1),
    _of(-1, 0, 1),
    _of(2),
    _of(-2),
)
ROOT_OF_P = Monomial(p=_HALF)
OVER_ROOT_OF_P = Monomial(p=-_HALF)


PAIRS = tuple(
    dict.fromkeys(
        product
        for first, second in combinations(SINGLES[:-1], 2)
        if (product := first * second) != ONE and product not in SINGLES
    )
)
"""Products of two different single mistakes that are not one themselves; 1/P² is two mistakes already."""
