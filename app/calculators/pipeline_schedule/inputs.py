"""What a pipeline schedule is asked: a body, or the fields of the panel; and the body read into one window."""

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import Field, model_validator

from samestep.app.calculators.pipeline_schedule.tables import TABLES
from samestep.app.calculators.pipeline_schedule.timing import ScheduleName
from samestep.app.calculators.pipeline_schedule.weights import SchemeName
from samestep.app.contract.arrays import Written, floats
from samestep.app.contract.errors import InputError
from samestep.app.contract.fields import (
    JSON,
    NonNegative,
    OptionalRankRows,
    RankRows,
    RawMatrix,
    RawNumber,
    Real,
    numbers,
    whole_number,
)
from samestep.app.contract.forms import Form
from samestep.app.contract.limits import MAX_CELLS, MAX_EXACT_CELLS, MAX_RANKS
from samestep.app.contract.models import Inputs as InputsBase, Query as QueryBase
from samestep.app.contract.numbers import as_float, as_json, bounded, exact, whole
from samestep.app.mathematics.ragged import place
from samestep.app.mathematics.window import Numbers, Window

MAX_COUNT = 10**15

Stages = Annotated[int, whole_number(1, MAX_RANKS)]
Parts = Annotated[list[list[RawNumber | list[RawNumber]]], JSON]
Counts = Annotated[RawMatrix | None, Form("matrix").optional()]
Ends = Annotated[tuple[Fraction, ...] | None, numbers().optional()]
Path = Callable[[int], tuple[str | int, ...]]
_read_count = bounded(whole, low=0, high=MAX_COUNT)


class Tied(InputsBase):
    """The gradients that a weight on the first and the last stage gets there, the weight, and the rate of one step."""

    first: Real
    last: Real
    weight: Real = Fraction(1)
    lr: NonNegative = Fraction(1, 10)


class Inputs(InputsBase):
    """`parts[k][j]` is the mean gradient of microbatch j of call k, a number or a vector; `counts` are its items, 1
    each if left out."""

    parts: Parts = Field(examples=[[[1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 1, 1]]])
    counts: Counts = Field(default=None, examples=[[[1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 1, 1]]])
    stages: Stages = 2
    schedule: ScheduleName = "gpipe"
    tied: Annotated[Tied, JSON] | None = Field(default=None, examples=[{"first": 3, "last": -4}])

    tables: ClassVar = TABLES


class Query(QueryBase):
    """The panel: a row a call, and the two gradients of the tied weight."""

    parts: RankRows = Field(default="1,1,1,1;1,1,1,1;1,1,1,1", validate_default=True)
    counts: OptionalRankRows = None
    stages: Stages = 4
    schedule: ScheduleName = "1f1b"
    tied: Ends = Field(default="3,-4", validate_default=True)
    weight: Real = Fraction(1)
    lr: NonNegative = Fraction(1, 10)
    scheme: SchemeName = "rescaled_after_every_call"

    @model_validator(mode="after")
    def _has_two_ends(self) -> "Query":
        if self.tied is not None and len(self.tied) != 2:
            en = f"needs two gradients, of the first and of the last stage; there are {len(self.tied)}"
            zh = f"应有两个梯度，首、尾阶段各一个；现在有 {len(self.tied)} 个"
            raise InputError(en, zh, field="tied", code="shape_mismatch")
        return self

    def inputs(self) -> Inputs:
        """The body that these fields stand for."""
        body: dict[str, Any] = {"stages": self.stages, "schedule": self.schedule, "parts": _written(self.parts)}
        if self.counts is not None:
            body["counts"] = _written(self.counts)
        if self.tied is not None:
            ends = dict(zip(("first", "last"), map(as_json, self.tied), strict=True))
            body["tied"] = ends | {"weight": as_json(self.weight), "lr": as_json(self.lr)}
        return Inputs.model_validate(body)


def _written(rows: Sequence[Sequence[Fraction]]) -> list[list[Written]]:
    return [[as_json(cell) for cell in row] for row in rows]


def window_of(inputs: Inputs) -> Window:
    """Calls as the rows of a window, its `gradient_sums` the mean gradients; exact up to MAX_EXACT_CELLS numbers.

    InputError names what does not fit: an empty call, vectors of different lengths, counts of another shape.
    """
    parts = inputs.parts
    if not parts:
        raise InputError("needs at least 1 entries", "至少要有 1 项", field="parts", code="too_short")
    if len(parts) > MAX_RANKS or sum(map(len, parts)) > MAX_CELLS:
        en = f"holds more than {MAX_RANKS:,} calls or {MAX_CELLS:,} microbatches"
        raise InputError(en, f"超过 {MAX_RANKS:,} 次调用或 {MAX_CELLS:,} 个微批", field="parts", code="too_long")
    for k, row in enumerate(parts):
        if not row:
            raise InputError("has no microbatch", "没有微批", field=("parts", k), code="too_short")
    gradients = _gradients(parts)
    sizes = tuple(map(len, parts))
    few = gradients.size <= MAX_EXACT_CELLS
    counts = _counts(inputs, sizes, object if few else np.float64)
    return Window(sizes, counts, gradients)


def _gradients(parts: Sequence[Sequence[Any]]) -> Numbers:
    """(C,) of numbers or (C, d) of vectors."""
    sizes = tuple(map(len, parts))
    cells = [part for row in parts for part in row]
    width = len(cells[0]) if isinstance(cells[0], list) else 0
    off = None
    if list in set(map(type, cells)):
        widths = (len(part) if isinstance(part, list) else 0 for part in cells)
        off = next((i for i, own in enumerate(widths) if own != width), None)
    if cells[0] == [] or off is not None:
        en = "must be as long a vector as the first microbatch’s, of at least one number"
        zh = "应是与第一个微批同样长的向量，至少一个数"
        raise InputError(en, zh, field=("parts", *place(sizes, off or 0)), code="shape_mismatch")
    flat = [value for part in cells for value in part] if width else cells
    if len(flat) > MAX_CELLS:
        en, zh = f"holds more than {MAX_CELLS:,} numbers", f"超过 {MAX_CELLS:,} 个数"
        raise InputError(en, zh, field="parts", code="too_long")

    def path(index: int) -> tuple[str | int, ...]:
        cell, element = divmod(index, width) if width else (index, None)
        return ("parts", *place(sizes, cell), *([] if element is None else [element]))

    values = _exactly(flat, path) if len(flat) <= MAX_EXACT_CELLS else floats(flat, as_float, path)
    return values.reshape(len(cells), width) if width else values


def _exactly(values: Sequence[Any], path: Path) -> Numbers:
    found = np.empty(len(values), dtype=object)
    for index, value in enumerate(values):
        try:
            found[index] = exact(value)
        except InputError as error:
            raise InputError(error.en, error.zh, field=path(index), code=error.code) from None
    return found


def _counts(inputs: Inputs, sizes: tuple[int, ...], dtype: Any) -> Numbers:
    one = Fraction(1) if dtype is object else 1.0
    if inputs.counts is None:
        return np.full(sum(sizes), one, dtype=dtype)
    if len(inputs.counts) != len(sizes):
        en = f"have {len(inputs.counts)} rows; there are {len(sizes)} calls"
        raise InputError(
            en, f"有 {len(inputs.counts)} 行；调用有 {len(sizes)} 次", field="counts", code="shape_mismatch"
        )
    for k, (row, size) in enumerate(zip(inputs.counts, sizes, strict=True)):
        if len(row) != size:
            en = f"of call {k} are {len(row)}; it has {size} microbatches"
            zh = f"在第 {k} 次调用有 {len(row)} 个；它有 {size} 个微批"
            raise InputError(en, zh, field=("counts", k), code="shape_mismatch")
    found: list[Any] = []
    try:
        for cell in (cell for row in inputs.counts for cell in row):
            found.append(one * _read_count(cell))
    except InputError as error:
        raise InputError(error.en, error.zh, field=("counts", *place(sizes, len(found))), code=error.code) from None
    return np.array(found, dtype=dtype)
