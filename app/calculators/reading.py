"""Numbers as they are typed, read into arrays and whole numbers; an error names the place of the bad one."""

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field, GetPydanticSchema, PlainSerializer, WithJsonSchema

from app.contract import (
    ExtendedRows,
    InputError,
    Rows,
    blank_to_none,
    exact,
    extended_rows_of,
    number_schema,
    raw_number_schema,
    rows_of,
)

Floats = NDArray[np.float64]
Path = tuple[str | int, ...]
Written = int | float | str

RawExtended = Annotated[
    int | float | str,
    GetPydanticSchema(lambda _source, _handler: raw_number_schema),
    WithJsonSchema({"anyOf": [number_schema(), {"enum": ["inf", "-inf", "nan"]}]}),
]
"""A number as typed, not yet read; `inf`, `-inf` and `nan` are allowed."""


def floats(values: Sequence[Written], path: Path, read: Callable[[object], Fraction | float] = exact) -> Floats:
    """A list as float64, (d,); InputError names the entry that cannot be used."""
    if str not in set(map(type, values)):
        try:
            return np.array(values, dtype=np.float64)
        except OverflowError:
            pass  # an integer beyond float64: the reading below names its place
    numbers: list[float] = []
    try:
        numbers.extend(float(read(value)) for value in values)
    except InputError as error:
        raise InputError(error.en, error.zh, field=(*path, len(numbers)), code=error.code) from None
    return np.array(numbers)


def rectangle(rows: Sequence[Sequence[Written]], field: str, row_en: str, row_zh: str) -> Floats:
    """Rows of one length as float64, (rows, d); `row_en` and `row_zh` are what a row is called (`rank`)."""
    width = len(rows[0])
    for r, row in enumerate(rows):
        if len(row) != width or width == 0:
            en = f"of {row_en} {r} have {len(row)} values; every {row_en} needs as many as the first, at least one"
            zh = f"在{row_zh} {r} 有 {len(row)} 个值；每个{row_zh}应与第一个同样多，且至少一个"
            raise InputError(en, zh, field=(field, r), code="shape_mismatch")
    return np.array([floats(row, (field, r)) for r, row in enumerate(rows)])


def whole(value: object) -> int:
    """A whole number, however it is written: 8, "8", "1e6"."""
    number = exact(value)
    if number.denominator != 1:
        raise InputError("must be a whole number", "应是整数", code="int_from_float")
    return number.numerator


def write_rows(rows: Sequence[Sequence[Fraction | float]] | None) -> str | None:
    """Rows in the grammar of GET fields."""
    return None if rows is None else ";".join(",".join(str(value) for value in row) for row in rows)


_ROWS_SCHEMA = WithJsonSchema({"type": "string", "examples": ["1,2;3,4"]})
_write = PlainSerializer(write_rows, when_used="json")

RowsText = Annotated[Rows, BeforeValidator(rows_of), _write, _ROWS_SCHEMA]
"""A GET field of rows: `1,2;3,4`."""

OptionalRowsText = Annotated[
    Rows | None,
    BeforeValidator(lambda value: None if blank_to_none(value) is None else rows_of(value)),
    _write,
    _ROWS_SCHEMA,
]
"""As RowsText; blank means not given."""

ExtendedRowsText = Annotated[
    tuple[tuple[Annotated[float, Field(allow_inf_nan=True)], ...], ...],
    BeforeValidator(extended_rows_of),
    _write,
    _ROWS_SCHEMA,
]
"""As RowsText, with `inf`, `-inf` and `nan`."""


def one_list(rows: Rows | ExtendedRows) -> list[float]:
    """All values in one list, whatever stood between them: a list may be pasted as a row or as a column."""
    return [float(value) for row in rows for value in row]
