"""One update window: how many items every cell holds, and the gradient and loss summed over them.

A cell is (replica r, microstep k). Arrays over cells are flat, in order of replicas, so that replicas may have any
number of microsteps; their `dtype` is `object` (of `Fraction`s, exact) for small windows and float64 for large ones,
and the same expressions serve both.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from samestep.app.contract.numbers import fraction_text

WINDOW, REPLICA, CELL = 0, 1, 2
"""The levels on which a quantity lives: one value, one a replica (P,), one a cell (C,)."""

Numbers = NDArray[Any]
"""float64, or objects that are `Fraction`s."""


def place_of(sizes: Sequence[int], index: int) -> tuple[int, int]:
    """Replica and microstep of a flat index into cells."""
    ends = np.cumsum(sizes)
    r = int(np.searchsorted(ends, index, side="right"))
    return r, index - int(ends[r] - sizes[r])


@dataclass(frozen=True)
class Window:
    """The data of one optimizer update.

    `sizes[r]` is K_r, the number of microsteps of replica r; `counts` (C,) holds the masses n_rk;
    `gradient_sums` is (C,) or, for vector gradients, (C, d); `loss_sums` is (C,), or None when no losses are known.
    """

    sizes: tuple[int, ...]
    counts: Numbers
    gradient_sums: Numbers
    loss_sums: Numbers | None = None

    @classmethod
    def shaped(cls, sizes: tuple[int, ...]) -> "Window":
        """An exact window of this shape, one unit of mass in every cell."""
        ones = np.full(sum(sizes), Fraction(1), dtype=object)
        return cls(sizes, ones, ones)

    @property
    def replicas(self) -> int:
        """P."""
        return len(self.sizes)

    @cached_property
    def is_exact(self) -> bool:
        return self.counts.dtype == object

    def number(self, value: int | Fraction) -> Any:
        """A scalar of the window's own kind: a Fraction, or a float."""
        return Fraction(value) if self.is_exact else float(value)

    def numbers(self, values: Sequence[int | Fraction]) -> Numbers:
        """An array of the window's own kind."""
        return np.array([self.number(value) for value in values], dtype=self.counts.dtype)

    @cached_property
    def float_counts(self) -> NDArray[np.float64]:
        """The masses in float64, (C,)."""
        return self.counts.astype(float) if self.is_exact else self.counts

    @cached_property
    def total(self) -> Any:
        """N, the mass of the whole window."""
        return total(self.counts)

    @cached_property
    def one(self) -> Any:
        return self.number(1)

    @cached_property
    def is_single(self) -> bool:
        """Whether every replica has one microstep."""
        return self.sizes == (1,) * len(self.sizes)

    @cached_property
    def is_rectangle(self) -> bool:
        """Whether all replicas have as many microsteps."""
        return len(set(self.sizes)) == 1

    def all_filled(self, denominator: Any) -> bool:
        """Whether no entry of a denominator is 0."""
        if not isinstance(denominator, np.ndarray):
            return bool(denominator)
        if denominator is self.counts:
            return self._no_empty_cell
        return bool(denominator.all())

    @cached_property
    def _no_empty_cell(self) -> bool:
        return len(self.counts) == 0 or bool(self.counts.all() if self.is_exact else self.counts.min() > 0)

    @cached_property
    def replica_counts(self) -> Numbers:
        return self.by_replica(self.counts)

    @cached_property
    def total_gradient(self) -> Any:
        return self.sums("gradient", WINDOW)

    @cached_property
    def total_loss(self) -> Any:
        """None when no losses are known."""
        return None if self.loss_sums is None else self.sums("loss", WINDOW)

    @cached_property
    def absolute_gradient(self) -> Any:
        """Σ|G_rk|, the size of what the sums round."""
        return total(abs(self.gradient_sums))

    @cached_property
    def _sums(self) -> dict[tuple[str, int], Any]:
        return {}

    def sums(self, what: Literal["gradient", "loss"], level: int) -> Any:
        """The sums of gradients or of losses on a level: a scalar, (P,) or (C,), for vectors (d,), (P, d) or (C, d)."""
        cells = self.gradient_sums if what == "gradient" else self.loss_sums
        assert cells is not None
        if level == CELL:
            return cells
        if (what, level) not in self._sums:
            self._sums[what, level] = total(cells) if level == WINDOW else self.by_replica(cells)
        return self._sums[what, level]

    @cached_property
    def _divided(self) -> dict[tuple[str, int], tuple[Any, Any]]:
        return {}

    def divided_sum(self, what: Literal["gradient", "loss"], level: int, denominator: Any) -> Any:
        """Σ sums / denominator over a level, made once for each denominator: schemes differ mostly by a scale."""
        key = what, id(denominator)
        if key not in self._divided:
            self._divided[key] = denominator, self._quotient(self.sums(what, level), level, denominator)
        return self._divided[key][1]

    def _quotient(self, sums: Any, level: int, denominator: Any) -> Any:
        if level == WINDOW:
            return divided(sums, denominator)
        if not self.is_exact and isinstance(denominator, np.ndarray):
            # not `@`: for a single pass over memory, BLAS threads cost more than they bring
            return np.einsum("i,i...->...", self._reciprocal(denominator), sums)[()]
        if self.is_exact and sums.ndim == 1 and isinstance(denominator, np.ndarray):
            return exact_quotient_sum(sums, denominator)
        return total(divided(sums, denominator))

    def _reciprocal(self, denominator: NDArray[np.float64]) -> NDArray[np.float64]:
        """1 / denominator, 0 where it is 0; made once, for gradients and losses."""
        key = "reciprocal", id(denominator)
        if key not in self._divided:
            if self.all_filled(denominator):
                self._divided[key] = denominator, np.reciprocal(denominator)
            else:
                self._divided[key] = denominator, divided(np.ones(len(denominator)), denominator)
        return self._divided[key][1]  # type: ignore[no-any-return]

    def by_replica(self, cells: Numbers) -> Numbers:
        """Sums over the microsteps of each replica: (C, …) to (P, …); a replica without microsteps sums to 0."""
        if self.is_single:
            return cells
        ends = np.cumsum(np.array(self.sizes, dtype=np.intp))
        starts = ends - np.array(self.sizes, dtype=np.intp)
        if cells.dtype == object:
            rows = [total(cells[start:end]) for start, end in zip(starts, ends, strict=True)]
            return np.array(rows, dtype=object)
        if self.is_rectangle and self.sizes[0]:
            return cells.reshape(self.replicas, -1, *cells.shape[1:]).sum(axis=1)  # type: ignore[no-any-return]
        sums = np.zeros((self.replicas, *cells.shape[1:]))
        filled = np.flatnonzero(self.sizes)
        if len(filled):
            sums[filled] = np.add.reduceat(cells, starts[filled], axis=0)
        return sums

    def over_cells(self, replicas: Numbers) -> Numbers:
        """Repeat a value of each replica for its cells: (P,) to (C,)."""
        return np.repeat(replicas, self.sizes)

    def nested(self, cells: Iterable[Any]) -> list[list[Any]]:
        """A flat list over cells as rows of replicas."""
        values = iter(cells)
        return [[next(values) for _ in range(size)] for size in self.sizes]


def divided(sums: Any, denominator: Any) -> Any:
    """sums / denominator, 0 where the denominator is 0; a vector's entries share their cell's denominator."""
    if not isinstance(denominator, np.ndarray):
        return sums / denominator if denominator else sums * 0
    if isinstance(sums, np.ndarray) and sums.ndim == 2:
        denominator = denominator[:, None]
    if denominator.all():
        return sums / denominator
    empty = denominator == 0
    return np.where(empty, 0, sums / np.where(empty, 1, denominator))


def total(cells: Numbers) -> Any:
    """The sum over the first axis; exact for objects, whatever the denominators."""
    if cells.dtype != object:
        return cells.sum(axis=0)
    if cells.ndim == 1:
        return exact_sum(cells)
    return np.array([exact_sum(column) for column in cells.T], dtype=object)


def exact_sum(values: Iterable[Fraction]) -> Fraction:
    """The sum of many fractions."""
    return _sum_of([value.as_integer_ratio() for value in values])


def exact_quotient_sum(values: Iterable[Fraction], divisors: Iterable[Fraction]) -> Fraction:
    """The sum of values / divisors, 0 where the divisor is 0."""
    pairs = zip(values, divisors, strict=True)
    ratios = [(value.as_integer_ratio(), divisor.as_integer_ratio()) for value, divisor in pairs if divisor]
    return _sum_of([(a * q, p * b) for (a, p), (b, q) in ratios])


def _sum_of(terms: list[tuple[int, int]]) -> Fraction:
    """The sum of ratios above / below, in one final reduction.

    Adding one by one reduces at every step, which is quadratic in the digits of the common denominator; here equal
    denominators are added first, the rest pairwise in a tree.
    """
    if len(terms) > 2:
        numerators: dict[int, int] = {}
        for above, below in terms:
            numerators[below] = numerators.get(below, 0) + above
        terms = [(above, below) for below, above in numerators.items()]
    while len(terms) > 1:
        paired = [(a * q + b * p, p * q) for (a, p), (b, q) in zip(terms[::2], terms[1::2], strict=False)]
        terms = paired + terms[len(paired) * 2 :]
    return Fraction(*terms[0]) if terms else Fraction(0)


def as_float(value: Any) -> Any:
    """A float, or a list of them; OverflowError where float64 cannot hold it."""
    if value is None:
        return None
    if isinstance(value, np.ndarray):
        array = value.astype(np.float64)
        if not np.isfinite(array).all():
            raise OverflowError
        return array.tolist()
    number = float(value)
    if not math.isfinite(number):
        raise OverflowError
    return number


def as_text(value: Any) -> Any:
    """The exact fraction, or a list of them; None for float64 values."""
    if isinstance(value, Fraction):
        return fraction_text(value)
    if isinstance(value, np.ndarray) and value.dtype == object:
        return [fraction_text(entry) for entry in value]
    return None
