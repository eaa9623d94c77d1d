"""Lists and rows of numbers as one types them in a field or text area: `2,3;8,0`; or as a program prints them:
`[[2, 3], [8, 0]]`, `tensor([100., 900.])`, `counts: [2 3]`."""

import re
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import TypeVar

from samestep.app.contract.errors import InputError
from samestep.app.contract.numbers import as_json, exact, extended, number_text

_Value = TypeVar("_Value")

Rows = tuple[tuple[Fraction, ...], ...]
ExtendedRows = tuple[tuple[float, ...], ...]

ROW_BREAKS = ";；\n"
VALUE_BREAKS = ",，\t"
"""Characters that end a row, and those that end a value; the tables of the pages are cut by the same ones."""
_ROW_BREAK = re.compile(f"[{ROW_BREAKS}]")
_VALUE_BREAK = re.compile(f"[{VALUE_BREAKS}]")
_PRINTED = re.compile(r"(?:[\w./ -]{1,60}[:=]\s*)?(?:[\w.]{1,20}\()?\s*([\[(].*[\])])", re.DOTALL)
"""A list as Python, NumPy or PyTorch prints it, with the name before it in a log; the group is the list."""
_PRINTED_OPTION = re.compile(r",\s*\w+=[\w'\".:<>]+(?=\s*[,)])")
"""`dtype=torch.float64`, `device='cuda:0'` behind a printed tensor."""
_PRINTED_NUMBER = re.compile(r"\b(?:(?:np|numpy)\.(?:float|u?int)\d+|tensor)\(([^()\[\],]*)\)")
"""`np.float64(2.5)`, `tensor(3)`: one number, as lists of such ones are printed."""
_BETWEEN_ROWS = re.compile(r"[\])]\s*[,;]?\s*[\[(]")
_BRACKETS = re.compile(r"[\[\]()]")
_MEMBER_BREAK = re.compile(r"[+＋\s]+")
_SHORT = 65_536
"""Characters of rows that are kept parsed: what a browser sends again with every step of a slider."""


def lines_of(text: str) -> str:
    """The text with `\\n` at the end of every line, whichever system wrote it."""
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def split_rows(text: str) -> list[list[str]]:
    """Cut `2,3;8,0` into rows and values: `;` or a newline between rows, `,` or a tab between values.

    A printed list is cut by its brackets, by commas, and by spaces where it has no comma.
    """
    text = lines_of(text)
    if "[" in text or text.startswith("("):
        printed = _PRINTED.fullmatch(_PRINTED_NUMBER.sub(r"\1", _PRINTED_OPTION.sub("", text.strip())))
        if printed:
            return [_printed_row(row) for row in _BETWEEN_ROWS.split(printed[1])]
    lines = text.strip(" \n").split("\n") if "\n" in text else [text]
    return [_VALUE_BREAK.split(row) for line in lines for row in _ROW_BREAK.split(line)]


def _printed_row(text: str) -> list[str]:
    inside = _BRACKETS.sub(" ", text).strip().rstrip(", ")
    cells = inside.split(",") if "," in inside else inside.split() or [""]
    return [cell.strip() for cell in cells]


def split_members(text: str) -> list[list[list[str]]]:
    """Cut `4+2,8;3,` into rows, cells and the members of a cell, with `+` or a blank between; a blank cell has none."""
    return [[[part for part in _MEMBER_BREAK.split(cell) if part] for cell in row] for row in split_rows(text)]


def rows_of(value: object) -> Rows:
    """Rows of exact numbers from the text of a GET field or text area; the error names row and column.

    Of a short text it is always the same object, so that what was made of it is known again.
    """
    return _rows_of_short_text(value) if isinstance(value, str) and len(value) <= _SHORT else rows_with(value, exact)


@lru_cache(maxsize=32)
def _rows_of_short_text(text: str) -> Rows:
    return rows_with(text, exact)


def extended_rows_of(value: object) -> ExtendedRows:
    """As `rows_of`, with `inf`, `-inf` and `nan` allowed."""
    return rows_with(value, extended)


def rows_with(value: object, read: Callable[[object], _Value]) -> tuple[tuple[_Value, ...], ...]:
    """Rows of what `read` makes of each cell; the error names row and column."""
    rows = split_rows(value) if isinstance(value, str) else value
    if not isinstance(rows, list | tuple) or not all(isinstance(row, list | tuple) for row in rows):
        raise InputError("must be rows of numbers such as 2,3;8,0", "应是数的行，例如 2,3;8,0", code="rows_type")
    return tuple(_read_row(read, r, row) for r, row in enumerate(rows))


def _read_row(read: Callable[[object], _Value], row: int, cells: Iterable[object]) -> tuple[_Value, ...]:
    values: list[_Value] = []
    try:
        for cell in cells:
            values.append(read(cell))
    except InputError as error:
        place = row, len(values)
        place_en, place_zh = f"row {row + 1}, value {place[1] + 1} ", f"第 {row + 1} 行第 {place[1] + 1} 个值"
        raise InputError(place_en + error.en, place_zh + error.zh, code=error.code, cell=place) from None
    return tuple(values)


def list_of(value: object, read: Callable[[object], _Value], most: int | None = None) -> tuple[_Value, ...]:
    """One number, a list, or a text with its values in a row, in a column or in rows; the error names the place."""
    if isinstance(value, str):
        cells: Sequence[object] = [cell for row in split_rows(value) for cell in row]
    else:
        cells = value if isinstance(value, list | tuple) else [value]
    if not cells:
        raise InputError("needs at least 1 entries", "至少要有 1 项", code="too_short")
    if most is not None and len(cells) > most:
        raise InputError(f"has more than {most:,} entries", f"超过 {most:,} 项", code="too_long")
    values: list[_Value] = []
    try:
        for cell in cells:
            values.append(read(cell))
    except InputError as error:
        place_en, place_zh = (f"value {len(values) + 1} ", f"第 {len(values) + 1} 个值") if len(cells) > 1 else ("", "")
        raise InputError(place_en + error.en, place_zh + error.zh, code=error.code) from None
    return tuple(values)


def write_list(values: Iterable[object]) -> str:
    """`2,3,8`: what `list_of` reads."""
    return ",".join(map(number_text, values))


def write_rows(rows: Iterable[Iterable[Fraction | float]]) -> str:
    """`2,3;8,0`: what `split_rows` cuts."""
    return ";".join(map(write_list, rows))


def write_members(rows: Iterable[Iterable[Iterable[object]]]) -> str:
    """`4+2,8;3,`: what `split_members` cuts."""
    return ";".join(",".join("+".join(map(str, cell)) for cell in row) for row in rows)


def numbers_in_json(rows: Iterable[Iterable[Fraction]]) -> list[list[int | float | str]]:
    """Rows of exact numbers as a body holds them: `2`, `0.1`, `"1/3"`."""
    return [[as_json(value) for value in row] for row in rows]
