"""The weight of a token in every sequence of a partition, under one objective with its mean in one place."""

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from samestep.app.calculators.objective_weights.partition import Factors, Ints, Objective, Partition, Placement


class TokenWeights:
    """Exact fractions, one a sequence: the factor of its cell over a `divisor`, its length, C or 1; (n,)."""

    def __init__(self, factors: Factors, divisor: Ints) -> None:
        self.factors = factors
        self.divisor = divisor

    @classmethod
    def of(
        cls, partition: Partition, objective: Objective, placement: Placement, constant: int
    ) -> "TokenWeights | None":
        """None where the mean is undefined."""
        factors = partition.factors(objective, placement)
        if factors is None:
            return None
        ones = np.ones_like(partition.lengths)
        divisors = {"sequence_mean": partition.lengths, "constant": ones * constant}
        return cls(factors, divisors.get(objective, ones))

    def floats(self) -> NDArray[np.float64]:
        values: NDArray[np.float64] = self.factors.numerator / self.factors.denominator / self.divisor
        return values

    def exactly(self, i: int) -> Fraction:
        return Fraction(int(self.factors.numerator[i]), int(self.factors.denominator[i]) * int(self.divisor[i]))

    def same_as(self, other: "TokenWeights") -> bool:
        """Compared by cross-multiplying the small divisors only: nothing leaves 63 bits."""
        pairs = ((self.factors, other.divisor), (other.factors, self.divisor))
        mine, theirs = (_lowest(factors.numerator * divisor, factors.denominator) for factors, divisor in pairs)
        return bool(mine.equal(theirs).all())


def _lowest(above: Ints, below: Ints) -> Factors:
    common = np.gcd(above, below)
    return Factors(above // common, below // common)
