"""Means of one value a sample over any of the samples, and what they differ by from the mean over all.

Exact fractions where there are at most MAX_EXACT_CELLS samples, correctly rounded float64 sums where there are more.
"""

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import fsum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samestep.app.contract.models import Reason, Result
from samestep.app.contract.numbers import fraction_text

Indices = NDArray[np.int64]
Values = NDArray[Any]
"""Float64, or fractions."""


class Mean(Result):
    """A mean over `count` samples; `error` is what it differs by from the mean over the data set.

    Undefined, with the reason `zero_count`, over no sample. The exact fractions are null above MAX_EXACT_CELLS.
    """

    count: int
    defined: bool
    reason: Reason | None
    value: float | None
    exact: str | None
    error: float | None
    error_exact: str | None


_NONE = Mean(count=0, defined=False, reason="zero_count", value=None, exact=None, error=None, error_exact=None)


@dataclass(frozen=True, eq=False)
class Samples:
    """One value a sample, at least one of them."""

    values: Values

    @cached_property
    def whole(self) -> Fraction | float:
        """The mean over all samples."""
        return _average(self.values)

    def mean_over(self, indices: Indices) -> Mean:
        """The mean over the samples of these indices, a repeated one counted every time."""
        if not indices.size:
            return _NONE
        return self._mean(_average(self.values[indices.ravel()]), indices.size)

    def mean_of_means(self, groups: list[list[int]]) -> Mean:
        """The mean of the groups' own means, however many samples each has; none may be empty."""
        if not groups:
            return _NONE
        averages = np.array([_average(self.values[group]) for group in groups], dtype=self.values.dtype)
        return self._mean(_average(averages), len(groups))

    def _mean(self, average: Fraction | float, count: int) -> Mean:
        error = average - self.whole
        return Mean(
            count=count,
            defined=True,
            reason=None,
            value=float(average),
            exact=fraction_text(average) if isinstance(average, Fraction) else None,
            error=float(error),
            error_exact=fraction_text(error) if isinstance(error, Fraction) else None,
        )


def _average(values: Values) -> Fraction | float:
    if values.dtype == np.float64:
        return fsum(values.tolist()) / len(values)
    total: Fraction = sum(values.tolist(), start=Fraction(0))
    return total / len(values)
