"""Tables that readers bring: columns under a header, and what a calculator makes of them.

Lists and matrices of a body are columns by themselves. A field of another shape says in a `TableForm` (see
`models.Inputs.tables`) which columns it takes. A line belongs where `rank`, `microstep` or the like say, each numbered
from 0 or from 1.
"""

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samestep.app.contract.errors import FieldError, InputError, RefusedError
from samestep.app.contract.limits import MAX_CELLS
from samestep.app.contract.numbers import extended, finite_or_name
from samestep.app.contract.rows import split_members

Column = list[str] | NDArray[np.float64]
Columns = Mapping[str, Column]


@dataclass(frozen=True)
class TableForm:
    """A table that makes fields of a body: columns that it must have, then those that it may have.

    Cells of `texts` are names, or several numbers; those of all other columns have to be numbers.
    """

    columns: tuple[str, ...]
    read: Callable[[Columns], dict[str, Any]]
    optional: tuple[str, ...] = ()
    texts: frozenset[str] = frozenset()

    def takes(self, header: Collection[str]) -> bool:
        return set(self.columns) <= set(header) <= {*self.columns, *self.optional}


def table_error(en: str, zh: str) -> RefusedError:
    return RefusedError([FieldError(("file",), "file", en, zh)])


def values_of(column: Column) -> list[Any]:
    """As JSON has them: non-finite ones are their names."""
    if isinstance(column, list):
        return column
    values: list[Any] = column.tolist()
    return values if np.isfinite(column).all() else [finite_or_name(value) for value in values]


def numbers_in_cell(text: str) -> list[str]:
    """`100+0`: several numbers in one cell, with `+` or a blank between."""
    return [number for row in split_members(text) for cell in row for number in cell]


def numbered(columns: Columns, name: str) -> NDArray[np.intp]:
    """A column of whole numbers from 0 or from 1, counted from 0."""
    column = columns[name]
    numbers = np.array([extended(cell) for cell in column]) if isinstance(column, list) else column
    values = np.asarray(numbers, dtype=np.float64)
    whole = np.isfinite(values) & (values == np.floor(values)) & (values >= 0) & (values < MAX_CELLS + 1)
    if not whole.all():
        line = int(np.argmin(whole)) + 2
        raise table_error(f"line {line}: {name} must be 0, 1, 2, …", f"第 {line} 行：{name} 应为 0、1、2……")
    first = int(values.min())
    if first > 1:
        raise table_error(f"counts {name} from {first}: begin with 0 or 1", f"{name} 从 {first} 数起：应从 0 或 1 开始")
    return (values - first).astype(np.intp)


def in_rows(columns: Columns, row: str = "rank", place: str = "microstep") -> dict[str, list[list[Any]]]:
    """A matrix of every other column, a line an entry; without `place` entries keep the file's order in their row."""
    rows = numbered(columns, row)
    lines = np.arange(len(rows))
    step = numbered(columns, place) if place in columns else lines
    order = np.lexsort((step, rows))
    sizes = np.bincount(rows)
    if not sizes.all():
        missing = int(np.argmin(sizes != 0))
        en, zh = f"has no line for {row} {missing} (counted from 0)", f"没有 {row} {missing} 的行（从 0 数起）"
        raise table_error(en, zh)
    if place in columns:
        expected = lines - np.repeat(np.cumsum(sizes) - sizes, sizes)
        wrong = np.flatnonzero(step[order] != expected)
        if len(wrong):
            r, k = int(rows[order][wrong[0]]), int(expected[wrong[0]])
            en = f"needs every {place} once, without gaps: look at {row} {r}, {place} {k} (counted from 0)"
            raise table_error(en, f"{place} 应连续且各一行：请看 {row} {r} 的 {place} {k}（从 0 数起）")
    ends = np.cumsum(sizes)[:-1]
    fields: dict[str, list[list[Any]]] = {}
    for name, column in columns.items():
        if name in (row, place):
            continue
        if isinstance(column, list):
            ordered = [column[i] for i in order.tolist()]
            fields[name] = [ordered[a:b] for a, b in itertools.pairwise([0, *ends.tolist(), len(ordered)])]
        else:
            fields[name] = [values_of(part) for part in np.split(column[order], ends)]
    return fields


def in_cells(columns: Columns) -> list[list[list[dict[str, Any]]]]:
    """The lines of every cell by rank and microstep, each line by its columns; a cell without a line is empty.

    Without `microstep` every rank has one.
    """
    rank = numbered(columns, "rank")
    step = numbered(columns, "microstep") if "microstep" in columns else np.zeros_like(rank)
    ranks, steps = int(rank.max()) + 1, int(step.max()) + 1
    if ranks * steps > MAX_CELLS:
        raise table_error(f"makes more than {MAX_CELLS:,} cells", f"构成超过 {MAX_CELLS:,} 个单元格")
    names = [name for name in columns if name not in ("rank", "microstep")]
    cells: list[list[list[dict[str, Any]]]] = [[[] for _ in range(steps)] for _ in range(ranks)]
    lines = zip(*(values_of(columns[name]) for name in names), strict=True)
    for r, k, line in zip(rank.tolist(), step.tolist(), lines, strict=True):
        cells[r][k].append(dict(zip(names, line, strict=True)))
    return cells


def by_name(columns: Columns, name: str) -> dict[str, dict[str, Column]]:
    """The other columns of the lines that share a name, names in the order of their first line."""
    lines: dict[str, list[int]] = {}
    for i, text in enumerate(columns[name]):
        lines.setdefault(str(text), []).append(i)
    others: Sequence[str] = [other for other in columns if other != name]
    return {text: {other: [str(columns[other][i]) for i in at] for other in others} for text, at in lines.items()}


def is_number(cell: str) -> bool:
    try:
        extended(cell)
    except InputError:
        return False
    return True
