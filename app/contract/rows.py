"""Rows of numbers as one types them in a field or text area: `2,3;8,0`."""

import re
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from typing import TypeVar

from samestep.app.contract.errors import InputError
from samestep.app.contract.numbers import exact, extended

_Number = TypeVar("_Number", Fraction, float)

Rows = tuple[tuple[Fraction, ...], ...]
ExtendedRows = tuple[tuple[float, ...], ...]

ROW_BREAKS = ";；\n"
VALUE_BREAKS = ",，\t"
"""Characters that end a row, and those that end a value; the tables of the pages are cut by the same ones."""
_ROW_BREAK = re.compile(f"[{ROW_BREAKS}]")
_VALUE_BREAK = re.compile(f"[{VALUE_BREAKS}]")


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
