"""What every calculator promises: how numbers come in, how they go out, and how a wrong one is refused.

A number may be written as `2`, `0.1`, `1e-3` or `1/3`. Each means exactly that value: it is kept as a
`Fraction`, so that `0.1` is one tenth and results can be given as exact fractions beside the float64 ones.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetPydanticSchema,
    PlainSerializer,
    PlainValidator,
    WithJsonSchema,
)
from pydantic_core import core_schema

MAX_RANKS = 4_096
MAX_CELLS = 1_000_000
MAX_EXACT_CELLS = 4_096
"""Up to this many cells answers carry exact fractions."""
MAX_LISTED_CELLS = 10_000
"""Above this many cells answers leave out lists with one entry a cell."""

_LISTED_NAMES = 12

_Number = TypeVar("_Number", Fraction, float)

Reason = Literal["empty_cell", "zero_count", "zero_reference", "non_finite"]
NonFinite = Literal["inf", "-inf", "nan"]

_NUMBER = r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?"
_NUMBER_RE = re.compile(_NUMBER)
_RATIO_RE = re.compile(r"([+-]?[0-9]{1,18})\s*/\s*([0-9]{1,18})")
_MAX_LENGTH = 400
_SHORT = 24
_LONGEST_RATIO = 10**18
_LARGEST = Fraction(1.7976931348623157e308)
_SMALLEST = Fraction(5e-324)


class InputError(ValueError):
    """A value that cannot be used: which field, why, in both languages of the wiki.

    `field` is the name of the input (a path such as `("ranks", 0, 1, "grad")` for nested ones), empty where
    the caller knows it (inside a field's own validator). `cell` is the place, (row, column) counted from 0, in a field
    of rows whose text the message is about.
    """

    def __init__(
        self,
        en: str,
        zh: str,
        field: str | Sequence[str | int] = (),
        code: str = "value_error",
        cell: tuple[int, int] | None = None,
    ) -> None:
        super().__init__(en)
        self.en = en
        self.zh = zh
        self.field: tuple[str | int, ...] = (field,) if isinstance(field, str) else tuple(field)
        self.code = code
        self.cell = cell


class Inputs(BaseModel):
    """Base of POST bodies: frozen, unknown names refused, finite unless a field says otherwise."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    in_place: ClassVar[Mapping[str, type["Inputs"]]] = {}
    """Fields whose own fields may stand at the top of the body in their place."""

    @classmethod
    def laid_out(cls, body: dict[str, Any]) -> dict[str, Any]:
        """The same body, its numbers in matrices where they can be: what a form shows and an address holds."""
        return body


class Query(Inputs):
    """Base of a panel's state: the flat fields of a GET address, with the panel's defaults."""

    def inputs(self) -> Inputs:
        """The body that these fields stand for; InputError, naming a field of the panel, where they do not fit."""
        raise NotImplementedError


class Result(BaseModel):
    """Base of answers: frozen, and unable to hold NaN or Infinity."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)

    def tables(self) -> list["Table"]:
        """The result as tables, for CSV."""
        raise NotImplementedError


_Scheme = TypeVar("_Scheme", bound=str)


def chosen(schemes: Iterable[_Scheme], scheme: str | None) -> _Scheme:
    """The scheme to show: the named one, or the first; InputError where there is none of this name."""
    names = list(schemes)
    if scheme is None and names:
        return names[0]
    for name in names:
        if name == scheme:
            return name
    if not names:
        en, zh = "are empty: there is none to show", "为空：没有可以显示的方案"
        raise InputError(en, zh, field="schemes", code="too_short")
    listed = ", ".join(names[:_LISTED_NAMES])
    raise InputError(f"must be one of {listed}", f"应为 {listed} 之一", field="scheme", code="literal_error")


def no_scheme(scheme: str | None) -> None:
    """For calculators without schemes: InputError where one is asked for."""
    if scheme is not None:
        en, zh = "is not a field of this calculator", "不是这个计算器的字段"
        raise InputError(en, zh, field="scheme", code="extra_forbidden")


class Table(BaseModel):
    """One table of a result: a header and its rows, cells as they are written to CSV."""

    header: tuple[str, ...]
    rows: Sequence[tuple[str | float | int | bool | None, ...]]


def exact(value: object) -> Fraction:
    """The exact value of a number as typed: int, float (its shortest decimal), `"0.1"`, `"1/3"`.

    Raises InputError for anything else, and for values that float64 cannot hold.
    """
    if type(value) is str:
        return _from_short_text(value) if len(value) <= _SHORT else _from_text(value)
    if isinstance(value, Fraction):
        return value
    if isinstance(value, bool):
        raise InputError("true and false are not numbers", "true、false 不是数", code="number_type")
    if isinstance(value, int):
        return _in_range(Fraction(value))
    if isinstance(value, float):
        if not math.isfinite(value):
            raise InputError("must be a finite number", "必须是有限的数", code="finite_number")
        return Fraction(repr(value))
    raise InputError("must be a number", "必须是一个数", code="number_type")


@lru_cache(maxsize=16_384)
def _from_short_text(text: str) -> Fraction:
    """A dragged slider sends thousands of cells again, all but one as they were."""
    return _from_text(text)


def _from_text(text: str) -> Fraction:
    text = text.strip().replace("\N{MINUS SIGN}", "-")
    if text == "":
        raise InputError("is blank: a number is needed", "为空：这里需要一个数", code="blank")
    if text.lower().lstrip("+-") in ("nan", "inf", "infinity"):
        raise InputError("must be a finite number", "必须是有限的数", code="finite_number")
    if len(text) <= _MAX_LENGTH:
        if _NUMBER_RE.fullmatch(text):
            return _in_range(Fraction(text))
        ratio = _RATIO_RE.fullmatch(text)
        if ratio and int(ratio[2]) == 0:
            raise InputError("has the denominator 0", "的分母为 0", code="number_parsing")
        if ratio:
            return _in_range(Fraction(int(ratio[1]), int(ratio[2])))
    shown = text if len(text) <= 40 else text[:40] + "…"
    raise InputError(
        f"“{shown}” is not a number (write 2, 0.1, 1e-3 or 1/3)",
        f"“{shown}”不是数（可写 2、0.1、1e-3 或 1/3）",
        code="number_parsing",
    )


def _in_range(value: Fraction) -> Fraction:
    if abs(value) > _LARGEST:
        raise InputError("is beyond float64's range", "超出 float64 的范围", code="number_range")
    if value and abs(value) < _SMALLEST:
        raise InputError("is too close to 0 for float64", "太接近 0，float64 无法表示", code="number_range")
    return value


def as_float(value: object) -> float:
    """The float64 nearest to `exact(value)`; a short way for what the millions of numbers of a large body are."""
    if type(value) is float and math.isfinite(value):
        return value + 0.0
    if type(value) is str and len(value) <= 40 and _NUMBER_RE.fullmatch(value):
        number = float(value)
        if 1e-300 < abs(number) < 1e300:  # near the ends `exact` tells what rounds into float64 from what is beyond
            return number
    return float(exact(value))


def extended(value: object) -> float:
    """A float64 that may be non-finite, written as the string `inf`, `-inf` or `nan`."""
    if isinstance(value, str) and value.strip().lower() in ("inf", "+inf", "-inf", "nan"):
        return float(value)
    return as_float(value)


def whole(value: object) -> int:
    """An integer; `2.0` and `"4/2"` are one too."""
    number = exact(value)
    if number.denominator != 1:
        raise InputError("must be a whole number", "应是整数", code="int_from_float")
    return number.numerator


def not_negative(value: object) -> Fraction:
    number = exact(value)
    if number < 0:
        raise InputError("must be 0 or more", "不能小于 0", code="greater_than_equal")
    return number


def positive(value: object) -> Fraction:
    number = exact(value)
    if number <= 0:
        raise InputError("must be greater than 0", "必须大于 0", code="greater_than")
    return number


def _as_json(value: Fraction) -> int | float | str:
    if value.denominator == 1:
        return value.numerator
    if Fraction(repr(float(value))) == value:
        return float(value)
    return str(value) if value.denominator < _LONGEST_RATIO else _decimal(value) or str(value)


def _decimal(value: Fraction) -> str | None:
    """All decimals of a fraction that has an end of them: what a ratio of so many digits could not be read as."""
    places = value.denominator.bit_length()  # at least as many as there are twos or fives in the denominator
    scaled = value * 10**places
    if scaled.denominator != 1:
        return None
    digits = str(abs(scaled.numerator)).zfill(places + 1)
    return ("-" if value < 0 else "") + f"{digits[:-places]}.{digits[-places:]}".rstrip("0")


def numbers_in_json(rows: Iterable[Iterable[Fraction]]) -> list[list[int | float | str]]:
    """Rows of exact numbers as a body holds them: `2`, `0.1`, `"1/3"`."""
    return [[_as_json(value) for value in row] for row in rows]


_TEXT_SCHEMA = {
    "type": "string",
    "pattern": rf"^({_NUMBER}|[+-]?[0-9]{{1,18}}/[0-9]{{1,18}})$",
    "maxLength": _MAX_LENGTH,
}


def number_schema(**bounds: float) -> dict[str, object]:
    """JSON schema of a number or its decimal string."""
    return {"anyOf": [{"type": "number", **bounds}, _TEXT_SCHEMA]}


_extended_schema: dict[str, object] = {"anyOf": [{"type": "number"}, _TEXT_SCHEMA, {"enum": ["inf", "-inf", "nan"]}]}

_to_json = PlainSerializer(_as_json, when_used="json")
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
        core_schema.str_schema(strict=True, max_length=_MAX_LENGTH),
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

Rows = tuple[tuple[Fraction, ...], ...]
ExtendedRows = tuple[tuple[float, ...], ...]

_ROW_BREAK = re.compile(r"[;；\n]")
_VALUE_BREAK = re.compile(r"[,，\t]")


def split_rows(text: str) -> list[list[str]]:
    """Cut `2,3;8,0` into rows and values: `;` or a newline between rows, `,` or a tab between values."""
    lines = text.replace("\r\n", "\n").strip(" \n").split("\n") if "\n" in text else [text]
    return [_VALUE_BREAK.split(row) for line in lines for row in _ROW_BREAK.split(line)]


def rows_of(value: object) -> Rows:
    """Rows of exact numbers from the text of a GET field or text area; the error names row and column."""
    return tuple(_read_row(exact, r, row) for r, row in _numbered(value))


def extended_rows_of(value: object) -> ExtendedRows:
    """As `rows_of`, with `inf`, `-inf` and `nan` allowed."""
    return tuple(_read_row(extended, r, row) for r, row in _numbered(value))


def _numbered(value: object) -> Iterable[tuple[int, Sequence[object]]]:
    if isinstance(value, str):
        return enumerate(split_rows(value))
    if isinstance(value, Sequence) and all(isinstance(row, Sequence) and not isinstance(row, str) for row in value):
        return enumerate(value)
    raise InputError("must be rows of numbers such as 2,3;8,0", "应是数的行，例如 2,3;8,0", code="rows_type")


def _read_row(parse: Callable[[object], _Number], row: int, cells: Iterable[object]) -> tuple[_Number, ...]:
    values: list[_Number] = []
    try:
        for cell in cells:
            values.append(parse(cell))
    except InputError as error:
        place = row, len(values)
        place_en, place_zh = f"row {row + 1}, value {place[1] + 1} ", f"第 {row + 1} 行第 {place[1] + 1} 个值"
        raise InputError(place_en + error.en, place_zh + error.zh, code=error.code, cell=place) from None
    return tuple(values)


def write_rows(rows: Iterable[Iterable[Fraction | float]]) -> str:
    """`2,3;8,0`: what `split_rows` cuts."""
    return ";".join(",".join(map(str, row)) for row in rows)


_write_rows = PlainSerializer(write_rows, return_type=str, when_used="json")
RowsText = Annotated[Rows, PlainValidator(rows_of), _write_rows, WithJsonSchema({"type": "string"})]
"""A GET field with rows of numbers: `;` or a newline between rows, `,` or a tab between values."""
ExtendedRowsText = Annotated[
    ExtendedRows, PlainValidator(extended_rows_of), _write_rows, WithJsonSchema({"type": "string"})
]


def blank_to_none(value: object) -> object:
    """A blank optional field was not given."""
    return None if isinstance(value, str) and value.strip() == "" else value


def fraction_text(value: Fraction) -> str:
    """`2/5`, `-3`: any length (Python's own `str` refuses integers above 4,300 digits)."""
    numerator = _digits(value.numerator)
    return numerator if value.denominator == 1 else f"{numerator}/{_digits(value.denominator)}"


def _digits(value: int) -> str:
    if value.bit_length() < 14_000:  # under 4,215 digits
        return str(value)
    sign, value = ("-", -value) if value < 0 else ("", value)
    base = 10**4000
    chunks = []
    while value:
        value, chunk = divmod(value, base)
        chunks.append(str(chunk).zfill(4000))
    return sign + "".join(reversed(chunks)).lstrip("0")


def finite_or_name(value: float) -> float | NonFinite:
    """The number, or the string that stands for it in JSON."""
    if math.isfinite(value):
        return value
    return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
