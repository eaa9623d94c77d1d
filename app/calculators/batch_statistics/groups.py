"""Values in the cells of a window, and moments of groups of cells.

A window is P ranks × K microsteps; cell c = r·K + k holds any number of values, laid end to end in order of cells. A
grouping gives every cell the index of its group. Small windows are exact (objects that are `Fraction`s), large ones
float64; the same expressions serve both.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import chain, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samestep.app.contract.arrays import Floats, Written, floats
from samestep.app.contract.errors import InputError
from samestep.app.contract.limits import MAX_CELLS, MAX_EXACT_CELLS, MAX_RANKS
from samestep.app.contract.numbers import as_float, exact
from samestep.app.mathematics.ragged import place
from samestep.app.mathematics.window import Numbers, exact_sum

_SAME = 1e-9
"""Float64 statistics of large windows this near, relatively, are the same."""

Ints = NDArray[np.int64]
Shape = tuple[int, int]


def shape_of(cells: Sequence[Sequence[Any]], field: str) -> Shape:
    """P and K; InputError where ranks differ in their number of microsteps, or there are too many."""
    if not cells or not cells[0]:
        raise InputError("needs at least one cell", "至少要有一个单元格", field=field, code="too_short")
    if len(cells) > MAX_RANKS or sum(map(len, cells)) > MAX_CELLS:
        en = f"holds more than {MAX_RANKS:,} ranks or {MAX_CELLS:,} cells"
        raise InputError(en, f"超过 {MAX_RANKS:,} 个 rank 或 {MAX_CELLS:,} 格", field=field, code="too_long")
    for r, row in enumerate(cells):
        if len(row) != len(cells[0]):
            en = f"of rank {r} has {len(row)} microsteps; every rank needs as many as the first"
            zh = f"在 rank {r} 有 {len(row)} 个微步；每个 rank 应与第一个同样多"
            raise InputError(en, zh, field=(field, r), code="shape_mismatch")
    return len(cells), len(cells[0])


@dataclass(frozen=True)
class Groups:
    """One group index a cell, (C,), from 0 to `count` - 1."""

    of_cell: Ints
    count: int


def groupings(shape: Shape) -> dict[str, Groups]:
    """The whole window, each rank, each microstep over ranks, each cell."""
    ranks, microsteps = shape
    cells = np.arange(ranks * microsteps)
    return {
        "window": Groups(cells * 0, 1),
        "rank": Groups(cells // microsteps, ranks),
        "microstep": Groups(cells % microsteps, microsteps),
        "cell": Groups(cells, ranks * microsteps),
    }


@dataclass(frozen=True)
class Moments:
    """Of each group: how many values, their mean and the sum of squared distances from it; 0 for empty groups."""

    counts: Ints
    means: Numbers
    squares: Numbers

    def variances(self, unbiased: bool) -> Numbers:
        """squares/(n - 1) or squares/n; 0 where that would divide by nothing."""
        divisors = self.counts - int(unbiased)
        return np.asarray(self.squares / np.where(divisors > 0, divisors, 1))


@dataclass(frozen=True)
class Values:
    """`sizes` (C,) values a cell, `flat` all of them."""

    shape: Shape
    sizes: Ints
    flat: Numbers

    @property
    def is_exact(self) -> bool:
        return self.flat.dtype == object

    @cached_property
    def cells(self) -> Ints:
        """The cell of each value."""
        return np.repeat(np.arange(len(self.sizes)), self.sizes)

    def moments(self, groups: Groups) -> Moments:
        """Mean and squares of every group, in two passes."""
        of_value = groups.of_cell[self.cells]
        counts = np.bincount(groups.of_cell, weights=self.sizes, minlength=groups.count).astype(np.int64)
        divisors = np.where(counts > 0, counts, 1)
        means = np.asarray(self._summed(self.flat, of_value, groups.count) / divisors)
        distances = self.flat - means[of_value]
        return Moments(counts, means, self._summed(distances * distances, of_value, groups.count))

    def _summed(self, values: Numbers, of_value: Ints, count: int) -> Numbers:
        if not self.is_exact:
            return np.bincount(of_value, weights=values, minlength=count)
        order = np.argsort(of_value, kind="stable")
        ends = np.searchsorted(of_value[order], np.arange(count + 1))
        ordered = values[order]
        sums = [exact_sum(ordered[ends[i] : ends[i + 1]]) for i in range(count)]
        return np.array(sums, dtype=object)

    def nested(self, flat: Sequence[Any]) -> list[list[list[Any]]]:
        """Entries, one a value, as [r][k]."""
        ends = np.concatenate([[0], np.cumsum(self.sizes)]).tolist()
        cells = [list(flat[start:end]) for start, end in pairwise(ends)]
        return self.by_cell(cells)

    def by_cell(self, cells: Sequence[Any]) -> list[list[Any]]:
        """Entries, one a cell, as [r][k]."""
        width = self.shape[1]
        return [list(cells[start : start + width]) for start in range(0, len(cells), width)]


def values_of(cells: Sequence[Sequence[Sequence[Written]]]) -> Values:
    """Values of a body; InputError names the place of one that cannot be used."""
    shape = shape_of(cells, "values")
    sizes = [len(cell) for row in cells for cell in row]
    if sum(sizes) > MAX_CELLS:
        en, zh = f"holds more than {MAX_CELLS:,} values", f"超过 {MAX_CELLS:,} 个值"
        raise InputError(en, zh, field="values", code="too_long")
    flat = list(chain.from_iterable(chain.from_iterable(cells)))
    return Values(shape, np.array(sizes, dtype=np.int64), _numbers(flat, sizes, shape[1]))


def _numbers(flat: list[Any], sizes: list[int], width: int) -> Numbers:
    def where(index: int) -> tuple[str | int, ...]:
        cell, member = place(sizes, index)
        return "values", *divmod(cell, width), member

    if len(flat) > MAX_EXACT_CELLS:
        return floats(flat, as_float, where)
    numbers: list[Fraction] = []
    try:
        numbers.extend(map(exact, flat))
    except InputError as error:
        raise InputError(error.en, error.zh, field=where(len(numbers)), code=error.code) from None
    return np.array(numbers, dtype=object)


def same(one: Numbers, other: Numbers) -> bool:
    """Equal numbers; of large windows, as far as float64 tells."""
    if one.dtype == object:
        return bool((one == other).all())
    return bool(np.allclose(one, other, rtol=_SAME, atol=0))


def farthest(one: Floats, other: Floats) -> float | None:
    """The largest distance; None where a value of either is missing, or there are none."""
    if not one.size or not (np.isfinite(one).all() and np.isfinite(other).all()):
        return None
    return float(np.abs(one - other).max())
