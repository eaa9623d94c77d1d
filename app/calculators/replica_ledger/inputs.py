"""How a ledger's window is written in a body, and how it is read into arrays.

`microsteps[r][k]` is one cell: its mass with values per unit (`n`, `g`, `loss`), or its mass with sums (`n`, `G`,
`S`), or its `items` (each `w`, `g`, `loss`). Large windows may come as columns in place of the cells. Up to
MAX_EXACT_CELLS values are read exactly, more of them as float64. Where no cell has a gradient, `assumed_gradients`
stand in for them: the weights, which need none, are answered all the same.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Annotated, Any, NotRequired

import numpy as np
from pydantic import ConfigDict, Field, with_config
from pydantic_core import core_schema
from typing_extensions import TypedDict

from samestep.app.contract.errors import InputError
from samestep.app.contract.fields import RawMatrix, RawNumber, number_schema, raw_number_schema
from samestep.app.contract.forms import Form
from samestep.app.contract.limits import MAX_CELLS, MAX_EXACT_CELLS, MAX_RANKS
from samestep.app.contract.models import Inputs
from samestep.app.contract.numbers import exact
from samestep.app.mathematics.window import Window, place_of, total

RawGradient = Annotated[
    int | float | str | list[int | float | str],
    Form(
        "list",
        core=core_schema.union_schema(
            [raw_number_schema, core_schema.list_schema(raw_number_schema, min_length=1)],
            custom_error_type="number_type",
            custom_error_message="must be a finite number, or a list of them",
        ),
        schema={"anyOf": [number_schema(), {"type": "array", "minItems": 1, "items": number_schema()}]},
        scalar=True,
    ),
]


@with_config(ConfigDict(extra="forbid"))
class Item(TypedDict):
    """One weighted item of a cell; the weight defaults to 1."""

    w: NotRequired[RawNumber]
    g: RawGradient
    loss: NotRequired[RawNumber]


@with_config(ConfigDict(extra="forbid"))
class Cell(TypedDict, total=False):
    """One microstep of one replica: n with g (and loss), or n with G (and S), or items."""

    n: RawNumber
    g: RawGradient
    loss: RawNumber
    G: RawGradient
    S: RawNumber
    items: list[Item]
    count: RawNumber


_NOTHING_TO_SUM = ("must be 0 where n is 0: there is nothing to sum", "n 为 0 时须为 0：没有可以求和的东西")

_ASSUMED = (-2, 1)
"""Two gradients that part with most wrong weights: those of the chapter's example."""

RawRows = Annotated[RawMatrix, Field(min_length=1, max_length=MAX_RANKS)]


class Columns(Inputs):
    """A window as columns: one row a replica, one number a microstep."""

    n: RawRows
    g: RawRows | None = None
    loss: RawRows | None = None
    G: RawRows | None = None
    S: RawRows | None = None


def assumed_gradients(sizes: Sequence[int]) -> list[list[int]]:
    """What stands in for gradients that nobody gave: −2 and 1 in turn, another in every neighbouring cell."""
    return [[_ASSUMED[(r + k) % 2] for k in range(size)] for r, size in enumerate(sizes)]


def without_gradients(microsteps: list[list[Cell]] | Columns) -> bool:
    """Whether the window is counts alone, perhaps with losses."""
    if isinstance(microsteps, Columns):
        return microsteps.g is None and microsteps.G is None
    cells = [cell for row in microsteps for cell in row]
    return bool(cells) and all("n" in cell and cell.keys() <= {"n", "loss", "S"} for cell in cells)


def completed(microsteps: list[list[Cell]] | Columns) -> list[list[Cell]] | Columns:
    """The window with a gradient in every cell: assumed ones where none was given."""
    if not without_gradients(microsteps):
        return microsteps
    gradients: list[list[Any]] = assumed_gradients([len(row) for row in _rows_of(microsteps)])
    if isinstance(microsteps, Columns):
        return microsteps.model_copy(update={"g": gradients})
    return [
        [Cell(**cell, g=g) for cell, g in zip(row, given, strict=True)]
        for row, given in zip(microsteps, gradients, strict=True)
    ]


def _rows_of(microsteps: list[list[Cell]] | Columns) -> Sequence[Sequence[Any]]:
    return microsteps.n if isinstance(microsteps, Columns) else microsteps


def window_of(microsteps: list[list[Cell]] | Columns) -> Window:
    """Read a window; InputError names the cell that cannot be used."""
    sizes = tuple(map(len, _rows_of(microsteps)))
    cells = sum(sizes)
    if cells > MAX_CELLS:
        raise InputError(
            f"has more than {MAX_CELLS:,} cells", f"超过 {MAX_CELLS:,} 格", field="microsteps", code="too_long"
        )
    if isinstance(microsteps, Columns):
        return _from_columns(microsteps, sizes, exactly=cells <= MAX_EXACT_CELLS)
    return _from_cells(microsteps, sizes)


def _from_columns(columns: Columns, sizes: tuple[int, ...], *, exactly: bool) -> Window:
    for per_unit, summed in (("g", "G"), ("loss", "S")):
        if getattr(columns, per_unit) is not None and getattr(columns, summed) is not None:
            en, zh = f"give {per_unit} or {summed}, not both", f"{per_unit} 与 {summed} 只能给一个"
            raise InputError(en, zh, field=("microsteps", summed), code="exclusive")
    counts = _column(columns, "n", sizes, exactly=exactly)
    negative = [count.numerator < 0 for count in counts] if exactly else counts < 0
    if np.any(negative):
        r, k = place_of(sizes, int(np.argmax(negative)))
        raise InputError("must be 0 or more", "不能小于 0", field=("microsteps", "n", r, k), code="greater_than_equal")
    sums: dict[str, Any] = {}
    for per_unit, summed in (("g", "G"), ("loss", "S")):
        if getattr(columns, summed) is not None:
            sums[summed] = _column(columns, summed, sizes, exactly=exactly)
            stray = (counts == 0) & (sums[summed] != 0)
            if stray.any():
                place = place_of(sizes, int(np.argmax(stray)))
                raise InputError(*_NOTHING_TO_SUM, field=("microsteps", summed, *place), code="not_zero")
        elif getattr(columns, per_unit) is not None:
            sums[summed] = counts * _column(columns, per_unit, sizes, exactly=exactly)
    return Window(sizes, counts, sums["G"], sums.get("S"))


def _column(columns: Columns, name: str, sizes: tuple[int, ...], *, exactly: bool) -> Any:
    rows = getattr(columns, name)
    if tuple(map(len, rows)) != sizes:
        en, zh = "needs one number for each entry of n", "须与 n 形状相同，每个单元格一个数"
        raise InputError(en, zh, field=("microsteps", name), code="shape_mismatch")
    flat = list(chain.from_iterable(rows))
    if exactly:
        return np.array(_read_all(flat, exact, name, sizes), dtype=object)
    if str not in set(map(type, flat)):
        try:
            return np.array(flat, dtype=np.float64)
        except OverflowError:
            pass  # an integer beyond float64: the reading below names its place
    return np.array(_read_all(flat, _as_float, name, sizes))


def _read_all(flat: list[Any], read: Callable[[Any], Any], name: str, sizes: tuple[int, ...]) -> list[Any]:
    values: list[Any] = []
    try:
        values.extend(map(read, flat))
    except InputError as error:
        r, k = place_of(sizes, len(values))
        raise InputError(error.en, error.zh, field=("microsteps", name, r, k), code=error.code) from None
    return values


def given_gradients(microsteps: list[list[Cell]] | Columns, r: int) -> list[Any]:
    """The gradients per unit of mass of a replica's cells, None where a cell is given by sums or items."""
    if isinstance(microsteps, Columns):
        return [None] * len(microsteps.n[r]) if microsteps.g is None else [exact(value) for value in microsteps.g[r]]
    given = (cell.get("g") for cell in microsteps[r])
    return [np.array([*map(float, map(exact, g))]) if isinstance(g, list) else g and exact(g) for g in given]


def in_columns(microsteps: object) -> dict[str, Any] | None:
    """The same window as columns; None where a cell holds more than one number of a kind."""
    if isinstance(microsteps, dict):
        return microsteps
    if not isinstance(microsteps, list) or not microsteps or not all(isinstance(row, list) for row in microsteps):
        return None
    cells = [cell for row in microsteps for cell in row]
    if not cells or not all(isinstance(cell, dict) and cell.keys() == cells[0].keys() for cell in cells):
        return None
    if not cells[0].keys() <= Columns.model_fields.keys():
        return None
    if any(isinstance(value, list) for cell in cells for value in cell.values()):
        return None
    return {name: [[cell[name] for cell in row] for row in microsteps] for name in cells[0]}


def _as_float(value: int | float | str) -> float:
    return value if type(value) is float else float(exact(value))


def _from_cells(microsteps: list[list[Cell]], sizes: tuple[int, ...]) -> Window:
    entries = sum(len(cell.get("items", ())) or _width(cell) for row in microsteps for cell in row)
    read = exact if entries <= MAX_EXACT_CELLS else _as_float
    counts, gradients, losses = [], [], []
    for path, cell in _placed(microsteps):
        n, gradient, loss = _items(cell, path, read) if "items" in cell else _sums(cell, path, read)
        counts.append(n)
        gradients.append(gradient)
        losses.append(loss)
    dtype = object if read is exact else np.float64
    known = None if None in losses else np.array(losses, dtype=dtype)
    return Window(sizes, np.array(counts, dtype=dtype), _stacked(gradients, "microsteps", dtype), known)


def _stacked(gradients: list[Any], path: str | tuple[str | int, ...], dtype: Any) -> Any:
    """Scalars as (C,), vectors as (C, d); InputError where lengths differ."""
    lengths = {len(gradient) if isinstance(gradient, list) else 0 for gradient in gradients}
    if len(lengths) > 1:
        en, zh = "all gradients need the same length", "所有梯度的长度须相同"
        raise InputError(en, zh, field=path, code="shape_mismatch")
    return np.array(gradients, dtype=dtype)


def _placed(microsteps: list[list[Cell]]) -> Iterator[tuple[tuple[str | int, ...], Cell]]:
    for r, row in enumerate(microsteps):
        for k, cell in enumerate(row):
            yield ("microsteps", r, k), cell


def _width(cell: Cell) -> int:
    gradient = cell.get("g", cell.get("G"))
    return len(gradient) if isinstance(gradient, list) else 1


def _number(value: Any, path: tuple[str | int, ...], read: Callable[[Any], Any]) -> Any:
    try:
        return read(value)
    except InputError as error:
        raise InputError(error.en, error.zh, field=path, code=error.code) from None


def _mass(value: Any, path: tuple[str | int, ...], read: Callable[[Any], Any]) -> Any:
    mass = _number(value, path, read)
    if mass < 0:
        raise InputError("must be 0 or more", "不能小于 0", field=path, code="greater_than_equal")
    return mass


def _gradient(value: Any, path: tuple[str | int, ...], read: Callable[[Any], Any], times: Any = 1) -> Any:
    """A gradient times a mass: a number, or a list of them."""
    if isinstance(value, list):
        return [times * _number(entry, (*path, i), read) for i, entry in enumerate(value)]
    return times * _number(value, path, read)


def _sums(cell: Cell, path: tuple[str | int, ...], read: Callable[[Any], Any]) -> tuple[Any, Any, Any]:
    """(n, G, S) of a cell; S is None when no loss is given."""
    if "n" not in cell:
        raise InputError("is missing", "缺失", field=(*path, "n"), code="missing")
    n = _mass(cell["n"], (*path, "n"), read)
    per_unit = _one_of(cell, "g", "G", path)
    if per_unit is None:
        raise InputError("is missing (or G, or items)", "缺失（或给出 G、items）", field=(*path, "g"), code="missing")
    times = n if per_unit == "g" else 1
    gradient = _gradient(cell[per_unit], (*path, per_unit), read, times)  # type: ignore[literal-required]
    loss_name = _one_of(cell, "loss", "S", path)
    loss = None if loss_name is None else _number(cell[loss_name], (*path, loss_name), read)  # type: ignore[literal-required]
    if n == 0:
        for name, value in (("G", gradient if per_unit == "G" else 0), ("S", loss if loss_name == "S" else 0)):
            if value if not isinstance(value, list) else any(value):
                raise InputError(*_NOTHING_TO_SUM, field=(*path, name), code="not_zero")
    return n, gradient, n * loss if loss_name == "loss" else loss


def _one_of(cell: Cell, per_unit: str, summed: str, path: tuple[str | int, ...]) -> str | None:
    if per_unit in cell and summed in cell:
        en, zh = f"give {per_unit} or {summed}, not both", f"{per_unit} 与 {summed} 只能给一个"
        raise InputError(en, zh, field=(*path, summed), code="exclusive")
    return per_unit if per_unit in cell else summed if summed in cell else None


def _items(cell: Cell, path: tuple[str | int, ...], read: Callable[[Any], Any]) -> tuple[Any, Any, Any]:
    """(n, G, S) of a cell given by its items."""
    extra = set(cell) - {"items", "count"}
    if extra:
        en, zh = "give the items or the cell's own numbers, not both", "items 与整个单元格的数只能给一种"
        raise InputError(en, zh, field=(*path, sorted(extra)[0]), code="exclusive")
    items = cell["items"]
    if not items:
        en, zh = "needs at least one item (an empty cell is n = 0)", "至少要有一项（空单元格写 n = 0）"
        raise InputError(en, zh, field=(*path, "items"), code="too_short")
    masses, gradients, losses = [], [], []
    for i, item in enumerate(items):
        here = (*path, "items", i)
        masses.append(_mass(item.get("w", 1), (*here, "w"), read))
        gradients.append(_gradient(item["g"], (*here, "g"), read, masses[-1]))
        if "loss" in item:
            losses.append(masses[-1] * _number(item["loss"], (*here, "loss"), read))
    dtype = object if read is exact else np.float64
    gradient = total(_stacked(gradients, (*path, "items"), dtype))
    loss = total(np.array(losses, dtype=dtype)) if len(losses) == len(items) else None
    return total(np.array(masses, dtype=dtype)), list(gradient) if isinstance(gradient, np.ndarray) else gradient, loss
