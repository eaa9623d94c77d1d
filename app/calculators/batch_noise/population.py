"""Sequences of many lengths, and the moments of a gradient that is a sum over tokens divided by their number.

Words, symbols and formulas: see `batch_noise`. h is a sequence's mean gradient, L its length, S = L·h; g_s = E h is the
per-sequence objective, g_t = E S / E L the per-token one. Exact numbers in, float64 out.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from samestep.app.contract.arrays import Floats
from samestep.app.mathematics.window import exact_sum


@dataclass(frozen=True)
class TokenModel:
    """The gradient of one token: its mean and the mean's trend with the length, standard deviation, correlation."""

    mean: Fraction
    slope: Fraction
    sigma: Fraction
    rho: Fraction


class Population:
    """A population of sequences by length; `share`, `length`, `mean`, `variance` of a sequence mean, and `effective`
    tokens are (m,) each. `means` None makes them mean + slope·(length/mean length - 1).

    The objectives and the mean length are exact up to one rounding.
    """

    def __init__(
        self, lengths: Sequence[int], counts: Sequence[Fraction], tokens: TokenModel, means: Sequence[Fraction] | None
    ) -> None:
        count = exact_sum(counts)
        mass = [c * length for c, length in zip(counts, lengths, strict=True)]
        mean_length = exact_sum(mass) / count
        trend = [tokens.mean + tokens.slope * (length / mean_length - 1) for length in lengths]
        exact_means = trend if means is None else means
        per_sequence = exact_sum(c * mean for c, mean in zip(counts, exact_means, strict=True)) / count
        per_token = exact_sum(m * mean for m, mean in zip(mass, exact_means, strict=True)) / (count * mean_length)
        self.mean_length, self.difference = float(mean_length), float(per_token - per_sequence)
        self.per_sequence, self.per_token = float(per_sequence), float(per_token)
        self.share = np.array([float(c / count) for c in counts])
        self.token_share = np.array([float(m / (count * mean_length)) for m in mass])
        self.length = np.array(lengths, dtype=np.float64)
        self.mean = np.array([float(mean) for mean in exact_means])
        self.effective: Floats = self.length / (1 + (self.length - 1) * float(tokens.rho))
        self.variance: Floats = float(tokens.sigma) ** 2 / self.effective
        self.length_variance = float(self.share @ (self.length - self.mean_length) ** 2)
        self._low = min(lengths)
        self._step = math.gcd(*(length - self._low for length in lengths)) or 1
        self._span = (max(lengths) - self._low) // self._step

    @property
    def sequence_variance(self) -> float:
        """Var h of one sequence drawn from the population."""
        return float(self.share @ ((self.mean - self.per_sequence) ** 2 + self.variance))

    @property
    def sum_variance(self) -> float:
        """Var S / (E L)² of one sequence's gradient sum."""
        relative = self.length / self.mean_length
        return float(self.share @ ((relative * self.mean - self.per_token) ** 2 + relative**2 * self.variance))

    def points(self, batch: int) -> int:
        """How many values the number of tokens of a batch may have."""
        return batch * self._span + 1

    def ratio(self, batch: int, *, exactly: bool) -> tuple[float, float]:
        """Expectation and variance of the sum over tokens, divided by their number; not `exactly`: up to 1/B²."""
        if batch == 1:
            return self.per_sequence, self.sequence_variance
        bias, variance = self._ratio_exact(batch) if exactly else self._ratio_first_order(batch)
        return self.per_token + bias, variance

    @property
    def ratio_variance(self) -> float:
        """B times the first-order variance of the ratio."""
        return self._ratio_first_order(1)[1]

    def _ratio_first_order(self, batch: int) -> tuple[float, float]:
        excess = self.length * (self.mean - self.per_token)
        below = batch * self.mean_length**2
        spread = self.share @ (excess**2 + self.length**2 * self.variance)
        return -float(self.share @ (excess * (self.length - self.mean_length))) / below, float(spread) / below

    def _ratio_exact(self, batch: int) -> tuple[float, float]:
        """The difference from the per-token objective is Σ L_i·(h_i - g_t) / T with T the number of tokens. Weights
        over the lengths, convolved with the distribution of the other lengths, give what the numerator holds at each T.
        """
        size = self.points(batch)
        place = ((self.length - self._low) / self._step).astype(np.intp)
        excess = self.length * (self.mean - self.per_token)

        def transform(weights: Floats) -> NDArray[np.complex128]:
            return np.fft.rfft(np.bincount(place, weights * self.share, minlength=self._span + 1), size)

        ones, first = transform(np.ones_like(excess)), transform(excess)
        square = transform(excess**2 + self.length**2 * self.variance)
        totals = batch * self._low + self._step * np.arange(size)
        others = ones ** (batch - 2)
        bias = batch * float((np.fft.irfft(first * ones * others, size) / totals).sum())
        alone = batch * float((np.fft.irfft(square * ones * others, size) / totals / totals).sum())
        pairs = batch * (batch - 1) * float((np.fft.irfft(first * first * others, size) / totals / totals).sum())
        return bias, max(0.0, alone + pairs - bias * bias)
