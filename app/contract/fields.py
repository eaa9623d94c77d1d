"""The typed fields that bodies and panels are made of: how each is read, written back and described.

A field's type is its whole grammar: what a wrong value is told is the same at every door.
"""

from fractions import Fraction
from typing import Annotated

from pydantic import (
    BeforeValidator,
    Field,
    GetPydanticSchema,
    PlainSerializer,
    PlainValidator,
    StrictBool,
    WithJsonSchema,
)
from pydantic_core import core_schema

from samestep.app.contract.numbers import (
    LONGEST_NUMBER,
    NUMBER,
    as_json,
    blank_to_none,
    exact,
    extended,
    not_negative,
    positive,
)
from samestep.app.contract.rows import ExtendedRows, Rows, extended_rows_of, rows_of, write_rows

_TEXT_SCHEMA = {
    "type": "string",
    "pattern": rf"^({NUMBER}|[+-]?[0-9]{{1,18}}/[0-9]{{1,18}})$",
    "maxLength": LONGEST_NUMBER,
}


def number_schema(**bounds: float) -> dict[str, object]:
    """JSON schema of a number or its decimal string."""
    return {"anyOf": [{"type": "number", **bounds}, _TEXT_SCHEMA]}


_extended_schema: dict[str, object] = {"anyOf": [{"type": "number"}, _TEXT_SCHEMA, {"enum": ["inf", "-inf", "nan"]}]}

_to_json = PlainSerializer(as_json, when_used="json")
Real = Annotated[Fraction, BeforeValidator(exact), _to_json, WithJsonSchema(number_schema())]
NonNegative = Annotated[Fraction, BeforeValidator(not_negative), _to_json, WithJsonSchema(number_schema(minimum=0))]
Positive = Annotated[Fraction, BeforeValidator(positive), _to_json, WithJsonSchema(number_schema(exclusiveMinimum=0))]
Extended = Annotated[float, Field(allow_inf_nan=True), BeforeValidator(extended), WithJsonSchema(_extended_schema)]

RawNumber = Annotated[
    int | float | str,
    GetPydanticSchema(lambda _source, _handler: raw_number_schema),
    WithJsonSchema(number_schema()),
]
"""A number as typed, for bodies of up to a million of them: checked to be a number or a text, not yet read."""

raw_number_schema = core_schema.union_schema(
    [
        core_schema.int_schema(strict=True),
        core_schema.float_schema(strict=True, allow_inf_nan=False),
        core_schema.str_schema(strict=True, max_length=LONGEST_NUMBER),
    ],
    custom_error_type="number_type",
    custom_error_message="must be a finite number, or its text",
)

RawExtended = Annotated[
    int | float | str,
    GetPydanticSchema(lambda _source, _handler: raw_number_schema),
    WithJsonSchema(_extended_schema),
]
"""As RawNumber; the texts `inf`, `-inf` and `nan` will be read too."""

_ROWS_SCHEMA = WithJsonSchema({"type": "string", "examples": ["1,2;3,4"]})


def _written(rows: Rows | ExtendedRows | None) -> str | None:
    return None if rows is None else write_rows(rows)


_write = PlainSerializer(_written, when_used="json")
RowsText = Annotated[Rows, PlainValidator(rows_of), _write, _ROWS_SCHEMA]
"""A GET field with rows of numbers: `;` or a newline between rows, `,` or a tab between values."""
OptionalRowsText = Annotated[
    Rows | None,
    PlainValidator(lambda value: None if blank_to_none(value) is None else rows_of(value)),
    _write,
    _ROWS_SCHEMA,
]
"""As RowsText; blank means not given."""
ExtendedRowsText = Annotated[ExtendedRows, PlainValidator(extended_rows_of), _write, _ROWS_SCHEMA]
"""As RowsText, with `inf`, `-inf` and `nan`."""

_FLAGS = {"true": True, "false": False}
Flag = Annotated[
    StrictBool, BeforeValidator(lambda value: _FLAGS.get(value, value) if isinstance(value, str) else value)
]
"""True or false in a body, `true` or `false` in a text field."""
