"""The typed fields that bodies and panels are made of: numbers, whole numbers, lists and rows of them, flags.

A type for a number exists twice: read at once (`Real`, …), or kept as typed (`RawNumber`, …) for bodies of up to a
million of them, which are read in bulk.
"""

from collections.abc import Callable
from fractions import Fraction
from typing import Annotated, Any

from pydantic import BeforeValidator
from pydantic_core import core_schema

from samestep.app.contract.errors import InputError
from samestep.app.contract.forms import Form, blank_to_none
from samestep.app.contract.limits import MAX_RANKS
from samestep.app.contract.numbers import (
    LONGEST_NUMBER,
    NUMBER,
    as_json,
    bounded,
    exact,
    not_negative,
    positive,
    whole,
)
from samestep.app.contract.rows import (
    ExtendedRows,
    Rows,
    extended_rows_of,
    list_of,
    rows_of,
    rows_with,
    write_list,
    write_rows,
)

_TEXT_SCHEMA = {
    "type": "string",
    "pattern": rf"^({NUMBER}[kKmMgGbBtT]?|[+-]?[0-9]{{1,18}}/[0-9]{{1,18}})$",
    "maxLength": LONGEST_NUMBER,
}


def number_schema(**bounds: float) -> dict[str, Any]:
    """JSON schema of a number or its decimal string."""
    return {"anyOf": [{"type": "number", **bounds}, _TEXT_SCHEMA]}


OrBlank = BeforeValidator(blank_to_none)
"""For an optional field: blank means not given."""

# ---- one number

_real = Form("number", exact, number_schema(), as_json)
_positive = Form("number", positive, number_schema(exclusiveMinimum=0), as_json)
Real = Annotated[Fraction, _real]
NonNegative = Annotated[Fraction, Form("number", not_negative, number_schema(minimum=0), as_json)]
Positive = Annotated[Fraction, _positive]
RealOrAbsent = Annotated[Fraction | None, _real.absent()]
PositiveOrAbsent = Annotated[Fraction | None, _positive.absent()]
"""A number that may be left out, but is not null."""

_SCHEMA_WORDS = {"low": "minimum", "above": "exclusiveMinimum", "high": "maximum", "below": "exclusiveMaximum"}


def number(**bounds: int) -> Form:
    """A number within bounds (`low`, `above`, `high`, `below`, see `bounded`)."""
    described = {_SCHEMA_WORDS[name]: bound for name, bound in bounds.items()}
    return Form("number", bounded(exact, **bounds), number_schema(**described), as_json)


def whole_number(low: int, high: int) -> Form:
    """A whole number within bounds, both included."""
    return Form("number", bounded(whole, low=low, high=high), _whole_schema(low, high))


def _whole_schema(low: int, high: int) -> dict[str, Any]:
    return {"type": "integer", "minimum": low, "maximum": high}


def word_or_number(words: tuple[str, ...], read: Callable[[object], Any], schema: dict[str, Any]) -> Form:
    """One of `words`, or what `read` reads of anything else."""

    def read_either(value: object) -> Any:
        if isinstance(value, str) and value in words:
            return value
        try:
            return read(value)
        except InputError as error:
            listed_en, listed_zh = ", ".join(words), "、".join(words)
            en, zh = f"{error.en}; or one of {listed_en}", f"{error.zh}；或者是 {listed_zh} 之一"
            raise InputError(en, zh, code=error.code) from None

    return Form("number", read_either, {"anyOf": [{"enum": list(words)}, schema]}, factor_json)


def factor_json(value: Any) -> Any:
    """A word, a number or a table of numbers as JSON has it."""
    if isinstance(value, tuple):
        return [[as_json(cell) for cell in row] for row in value]
    return as_json(value) if isinstance(value, Fraction) else value


_FLAGS = {"true": True, "false": False}


def _flag(value: object) -> bool:
    found = _FLAGS.get(value, value) if isinstance(value, str) else value
    if not isinstance(found, bool):
        raise InputError("must be true or false", "应为 true 或 false", code="bool_type")
    return found


Flag = Annotated[bool, Form("flag", _flag, {"type": "boolean"})]
"""True or false in a body, `true` or `false` in a text field."""

# ---- numbers kept as typed

_EXTENDED_SCHEMA: dict[str, Any] = {"anyOf": [{"type": "number"}, _TEXT_SCHEMA, {"enum": ["inf", "-inf", "nan"]}]}

raw_number_schema = core_schema.union_schema(
    [
        core_schema.int_schema(strict=True),
        core_schema.float_schema(strict=True, allow_inf_nan=False),
        core_schema.str_schema(strict=True, max_length=LONGEST_NUMBER),
    ],
    custom_error_type="number_type",
    custom_error_message="must be a finite number, or its text",
)

RawNumber = Annotated[int | float | str, Form("number", schema=number_schema(), core=raw_number_schema)]
"""Checked to be a number or a text, not yet read."""
RawExtended = Annotated[int | float | str, Form("number", schema=_EXTENDED_SCHEMA, core=raw_number_schema)]
"""As RawNumber; the texts `inf`, `-inf` and `nan` will be read too."""

RawList = Annotated[list[RawNumber], Form("list")]
RawExtendedList = Annotated[list[RawExtended], Form("list")]
RawMatrix = Annotated[list[list[RawNumber]], Form("matrix")]
RawExtendedMatrix = Annotated[list[list[RawExtended]], Form("matrix")]


def at_most(cells: int) -> BeforeValidator:
    """For rows that are read at once: too many are refused before that, which takes seconds a million."""

    def count(value: object) -> object:
        if isinstance(value, list) and sum(len(row) for row in value if isinstance(row, list)) > cells:
            raise InputError(f"hold more than {cells:,} cells", f"超过 {cells:,} 个单元格", code="too_long")
        return value

    return BeforeValidator(count)


JSON = Form("json")
"""For a field that is neither a number nor numbers: it is typed as JSON."""

# ---- lists that are one number, a list, or a text


def whole_numbers(low: int, high: int) -> Form:
    """One whole number, a list, or its text; a tuple."""
    read, one = bounded(whole, low=low, high=high), _whole_schema(low, high)
    options = [{"type": "array", "items": one}, one, {"type": "string", "examples": ["9,4,7"]}]
    return Form("list", lambda value: list_of(value, read), {"anyOf": options}, write_list, scalar=True)


def numbers(read: Callable[[object], Any] = exact, *, most: int | None = None, **bounds: float) -> Form:
    """One number, a list, or its text; a tuple."""
    several = {"type": "array", "items": number_schema(**bounds), **({} if most is None else {"maxItems": most})}
    options = [{"type": "number", **bounds}, several, {"type": "string", "examples": ["0.4,-1.2"]}]
    return Form("list", lambda value: list_of(value, read, most), {"anyOf": options}, write_list, scalar=True)


# ---- rows in a text field

_ROWS_SCHEMA = {"type": "string", "examples": ["1,2;3,4"]}
_rows = Form("matrix", rows_of, _ROWS_SCHEMA, write_rows)

RowsText = Annotated[Rows, _rows]
"""A GET field with rows of numbers: `;` or a newline between rows, `,` or a tab between values."""
OptionalRowsText = Annotated[Rows | None, _rows.optional()]
"""As RowsText; blank means not given."""
ExtendedRowsText = Annotated[ExtendedRows, Form("matrix", extended_rows_of, _ROWS_SCHEMA, write_rows)]
"""As RowsText, with `inf`, `-inf` and `nan`."""


def _of_ranks(read: Callable[[object], Any]) -> Callable[[object], Any]:
    """Rows of which each is a rank's: no more than ranks may be."""

    def read_ranks(value: object) -> Any:
        rows = read(value)
        if len(rows) > MAX_RANKS:
            en, zh = f"have more than {MAX_RANKS:,} rows (ranks)", f"超过 {MAX_RANKS:,} 行（rank）"
            raise InputError(en, zh, code="too_long")
        return rows

    return read_ranks


_rank_rows = Form("matrix", _of_ranks(rows_of), _ROWS_SCHEMA, write_rows)
RankRows = Annotated[Rows, _rank_rows]
"""As RowsText, one row a rank (or microstep): at most MAX_RANKS."""
OptionalRankRows = Annotated[Rows | None, _rank_rows.optional()]
ExtendedRankRows = Annotated[ExtendedRows, Form("matrix", _of_ranks(extended_rows_of), _ROWS_SCHEMA, write_rows)]


def whole_rows(low: int, high: int) -> Form:
    """As RankRows, of whole numbers within bounds."""
    read = bounded(whole, low=low, high=high)
    return Form("matrix", _of_ranks(lambda value: rows_with(value, read)), _ROWS_SCHEMA, write_rows)
