"""The terms of a loss as a body holds them, read into arrays over the cells of the window.

A term with units has counts and sums, one row a replica and one number a microstep, in the same rectangle as every
other term's; a term without units (a weight norm, say) has a value instead.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from samestep.app.contract.arrays import Floats, floats
from samestep.app.contract.errors import InputError
from samestep.app.contract.fields import RawMatrix, Real, RealOrAbsent
from samestep.app.contract.limits import MAX_CELLS, MAX_EXACT_CELLS, MAX_LISTED_CELLS, MAX_RANKS
from samestep.app.contract.models import Inputs
from samestep.app.contract.numbers import as_float, bounded, exact, whole
from samestep.app.mathematics.window import Numbers

MAX_COUNT = 10**12
"""Units of one cell; so many in every cell still add up in an int64."""
MANY_TERMS = 2
"""With this many terms the limits for exact and listed cells hold; more terms share what these may have."""

Counts = NDArray[np.int64]
Shape = tuple[int, int]

_read_count = bounded(whole, low=0, high=MAX_COUNT)


class Term(Inputs):
    """One term of the loss: its coefficient, and the units of every cell with the sum of their losses; or its value."""

    name: str = Field(min_length=1, max_length=64)
    coefficient: Real = Fraction(1)
    counts: RawMatrix | None = None
    sums: RawMatrix | None = None
    value: RealOrAbsent = None

    @model_validator(mode="after")
    def _units_or_value(self) -> "Term":
        if self.value is not None:
            given = next((name for name in ("counts", "sums") if getattr(self, name) is not None), None)
            if given is not None:
                en, zh = f"cannot stand beside {given}: a term has units or a value", f"不能与 {given} 同时给出"
                raise InputError(en, zh, field="value", code="exclusive")
            return self
        for name in ("counts", "sums"):
            if getattr(self, name) is None:
                en, zh = "are missing (or value, for a term without units)", "缺失（没有单位的项给出 value）"
                raise InputError(en, zh, field=name, code="missing")
        return self


@dataclass(frozen=True)
class CountedTerm:
    """A term with units: `counts` (C,) in order of replicas; `sums` (C,) exact objects, or float64."""

    name: str
    coefficient: Fraction
    counts: Counts
    sums: Numbers


class Penalty(NamedTuple):
    name: str
    coefficient: Fraction
    value: Fraction


@dataclass(frozen=True)
class Loss:
    """All terms over one window of P replicas × K microsteps; the first of `terms` is what others may borrow from."""

    shape: Shape
    terms: tuple[CountedTerm, ...]
    penalties: tuple[Penalty, ...]

    @property
    def is_exact(self) -> bool:
        return self.terms[0].sums.dtype == object

    @property
    def is_listed(self) -> bool:
        """Whether answers list what a unit of each cell weighs."""
        cells = self.shape[0] * self.shape[1]
        return cells * max(len(self.terms), MANY_TERMS) <= MANY_TERMS * MAX_LISTED_CELLS


def loss_of(terms: Sequence[Term]) -> Loss:
    """The terms as arrays; InputError names the term and the place that cannot be used."""
    counted = [(i, term) for i, term in enumerate(terms) if term.value is None]
    if not counted:
        en, zh = "need one with counts and sums: without it there is no window", "至少要有一项给出 counts 与 sums"
        raise InputError(en, zh, field="terms", code="missing")
    shape = _shape(counted[0][1].counts or [], counted[0][0])
    cells = shape[0] * shape[1]
    exactly = cells * max(len(counted), MANY_TERMS) <= MANY_TERMS * MAX_EXACT_CELLS
    return Loss(
        shape,
        tuple(_counted(term, i, shape, exactly) for i, term in counted),
        tuple(Penalty(term.name, term.coefficient, term.value) for term in terms if term.value is not None),
    )


def _shape(rows: list[list[Any]], i: int) -> Shape:
    field = ("terms", i, "counts")
    if not rows or not rows[0]:
        raise InputError("needs at least one cell", "至少要有一个单元格", field=field, code="too_short")
    shape = len(rows), len(rows[0])
    if shape[0] > MAX_RANKS or shape[0] * shape[1] > MAX_CELLS:
        en = f"holds more than {MAX_RANKS:,} ranks or {MAX_CELLS:,} cells"
        raise InputError(en, f"超过 {MAX_RANKS:,} 个 rank 或 {MAX_CELLS:,} 格", field=field, code="too_long")
    return shape


def _counted(term: Term, i: int, shape: Shape, exactly: bool) -> CountedTerm:
    counts, sums = ((term.counts or []), (term.sums or []))
    for name, rows in (("counts", counts), ("sums", sums)):
        if len(rows) != shape[0] or any(len(row) != shape[1] for row in rows):
            en = f"need {shape[0]} rows of {shape[1]} values, as the first counts have"
            zh = f"应为 {shape[0]} 行、每行 {shape[1]} 个值，与第一项的 counts 相同"
            raise InputError(en, zh, field=("terms", i, name), code="shape_mismatch")
    n = _counts(list(chain.from_iterable(counts)), i, shape[1])
    total = _sums(list(chain.from_iterable(sums)), i, shape[1], exactly)
    stray = np.flatnonzero((n == 0) & (total != 0))
    if len(stray):
        place = divmod(int(stray[0]), shape[1])
        en, zh = "must be 0 where the count is 0: there is nothing to sum", "计数为 0 时须为 0：没有可以求和的东西"
        raise InputError(en, zh, field=("terms", i, "sums", *place), code="not_zero")
    return CountedTerm(term.name, term.coefficient, n, total)


def _counts(flat: list[Any], i: int, width: int) -> Counts:
    if set(map(type, flat)) == {int}:
        try:
            counts = np.array(flat, dtype=np.int64)
        except OverflowError:  # the reading below names its place
            counts = np.array([-1])
        if counts.min() >= 0 and counts.max() <= MAX_COUNT:
            return counts
    return np.array(_read(flat, _read_count, (i, "counts"), width), dtype=np.int64)


def _sums(flat: list[Any], i: int, width: int, exactly: bool) -> Numbers:
    if exactly:
        return np.array(_read(flat, exact, (i, "sums"), width), dtype=object)
    read: Floats = floats(flat, as_float, lambda index: ("terms", i, "sums", *divmod(index, width)))
    return read


def _read(flat: list[Any], read: Any, where: tuple[int, str], width: int) -> list[Any]:
    values: list[Any] = []
    try:
        values.extend(map(read, flat))
    except InputError as error:
        place = divmod(len(values), width)
        raise InputError(error.en, error.zh, field=("terms", *where, *place), code=error.code) from None
    return values
