"""Sets of cells that may be missing together: all of them in a small window, and in a larger one those that loops and
failures make: whole ranks and microsteps, the first or the last cells of a rank, of all ranks, of the window."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Protocol

import numpy as np
import numpy.typing as npt

from samestep.app.contract.arrays import Floats

MAX_SUBSET_CELLS = 12
MAX_STRETCHED_CELLS, MAX_LISTED_CELLS = 256, 4_096
"""In windows of more cells fewer stretches are tried, and beyond none (their number grows with the cells)."""

Cells = npt.NDArray[np.intp]


class Sets(Protocol):
    """Sets of two cells or more that have a count, never all of them; cells are places in the window's one row."""

    @property
    def count(self) -> int: ...

    def cells(self, index: int) -> Cells: ...

    def summed(self, values: Floats) -> Floats:
        """Σ over the cells of each set of the rows of `values`."""


@dataclass(frozen=True)
class _Chosen:
    """Subsets by the rows of a table of flags, one column a cell of `among`."""

    among: Cells
    flags: npt.NDArray[np.bool_]

    @property
    def count(self) -> int:
        return len(self.flags)

    def cells(self, index: int) -> Cells:
        return np.asarray(self.among[self.flags[index]])

    def summed(self, values: Floats) -> Floats:
        return np.asarray(self.flags @ values[self.among])


def sets_of(right: Floats) -> Sets:
    """All sets, or the likely ones, of the cells that have a weight."""
    cells = np.flatnonzero(right)
    return _subsets(cells) if len(cells) <= MAX_SUBSET_CELLS else _stretches(right)


def _subsets(cells: Cells) -> _Chosen:
    """All of them."""
    return _Chosen(cells, _flags(len(cells)))


@cache
def _flags(size: int) -> npt.NDArray[np.bool_]:
    codes = np.arange(1, max(1, 2**size - 1))[:, None]
    flags = (codes >> np.arange(size)) & 1 == 1
    return np.asarray(flags[flags.sum(axis=1) > 1])


@dataclass(frozen=True)
class _Listed:
    """Sets that are listed one by one."""

    listed: list[Cells]

    @property
    def count(self) -> int:
        return len(self.listed)

    def cells(self, index: int) -> Cells:
        return self.listed[index]

    def summed(self, values: Floats) -> Floats:
        return np.array([values[cells].sum(axis=0) for cells in self.listed])


def _stretches(right: Floats) -> _Listed:
    """Whole ranks and microsteps, and the first and last microsteps of all ranks; in windows of up to MAX_LISTED_CELLS
    also the first and last cells of each rank and of the window, rank by rank or microstep by microstep."""
    grid = np.arange(right.size).reshape(right.shape)
    ends = [grid[:, :k] for k in range(1, right.shape[1])] + [grid[:, k:] for k in range(1, right.shape[1])]
    rows: list[Cells] = [*grid, *grid.T, *(end.ravel() for end in ends)] if right.size <= MAX_LISTED_CELLS else []
    if right.size <= MAX_STRETCHED_CELLS:
        rows += [part for row in (grid.ravel(), grid.T.ravel(), *grid) for part in _ends_of(row)]
    found: dict[bytes, Cells] = {}
    counted = right.ravel() > 0
    for row in rows:
        cells = np.sort(row[counted[row]])
        if 1 < len(cells) < np.count_nonzero(counted):
            found.setdefault(cells.tobytes(), cells)
    return _Listed(list(found.values()))


def _ends_of(row: Cells) -> Iterator[Cells]:
    for length in range(2, len(row)):
        yield row[:length]
        yield row[-length:]
