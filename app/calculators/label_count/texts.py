"""The rows of a window as text, for GET fields.

`6 4,9;5+3,8`: `;` or a newline between ranks, `,` or a tab between microsteps, a space between the rows of a
microbatch, `+` between the sequences packed into a row. Labels are lists themselves, with `,` between them, so that
microsteps have a `|` there: `-100,5,6 5,6,7|5,6+7,8`. A microbatch may be left blank.
"""

import re
from collections.abc import Callable
from typing import Annotated, TypeVar

from samestep.app.calculators.label_count.rows import MAX_LENGTH
from samestep.app.contract.errors import InputError
from samestep.app.contract.forms import Form, blank_to_none
from samestep.app.contract.numbers import bounded, whole
from samestep.app.contract.rows import lines_of

_Entry = TypeVar("_Entry")

Sequences = tuple[_Entry, ...]
Nested = tuple[tuple[tuple[Sequences[_Entry], ...], ...], ...]
"""[rank][microstep][row][sequence]"""

_RANKS = re.compile(r"[;；\n]")
_PLUS = re.compile(r" *\+ *")
_MICROSTEPS = re.compile(r"[,，\t]")
_length, _prompt = (bounded(whole, low=low, high=MAX_LENGTH) for low in (1, 0))
_token = bounded(whole, low=-(2**31), high=2**31 - 1)


def _nested(text: str, microsteps: re.Pattern[str], read: Callable[[str], _Entry]) -> Nested[_Entry]:
    ranks = _RANKS.split(_PLUS.sub("+", lines_of(text).strip("\n")))
    return tuple(
        tuple(tuple(_row(row, read, r, k) for row in cell.split()) for k, cell in enumerate(microsteps.split(rank)))
        for r, rank in enumerate(ranks)
    )


def _row(text: str, read: Callable[[str], _Entry], rank: int, microstep: int) -> Sequences[_Entry]:
    try:
        return tuple(read(part) for part in text.split("+"))
    except InputError as error:
        en, zh = (
            f"rank {rank}, microstep {microstep}: “{text[:40]}” ",
            f"rank {rank} 第 {microstep} 个微步：“{text[:40]}”",
        )
        raise InputError(en + error.en, zh + error.zh, code=error.code) from None


def _lengths(value: object) -> Nested[int] | None:
    given = blank_to_none(value)
    return given if given is None or isinstance(given, tuple) else _nested(str(given), _MICROSTEPS, _length)


def _prompts(value: object) -> Nested[int]:
    if blank_to_none(value) is None:
        raise InputError("is blank: a number is needed", "为空：这里需要一个数", code="blank")
    return value if isinstance(value, tuple) else _nested(str(value), _MICROSTEPS, _prompt)


def _label_lists(value: object) -> Nested[tuple[int, ...]] | None:
    given = blank_to_none(value)
    if given is None or isinstance(given, tuple):
        return given
    joined = re.sub(r"[\[\]]", "", re.sub(r"\s*[,，]\s*", ",", str(given)))
    return _nested(joined, re.compile(r"\|"), lambda part: tuple(_token(label) for label in part.split(",")))


def write(nested: Nested[int] | None) -> str | None:
    """The text of lengths again."""
    if nested is None:
        return None
    return ";".join(",".join(" ".join("+".join(map(str, row)) for row in cell) for cell in rank) for rank in nested)


def write_labels(nested: Nested[tuple[int, ...]] | None) -> str | None:
    """The text of labels again."""
    if nested is None:
        return None
    return ";".join(
        "|".join(" ".join("+".join(",".join(map(str, one)) for one in row) for row in cell) for cell in rank)
        for rank in nested
    )


_TEXT = {"type": "string"}
LengthsText = Annotated[Nested[int] | None, Form("text", _lengths, _TEXT, write)]
PromptsText = Annotated[Nested[int], Form("text", _prompts, _TEXT, write)]
LabelsText = Annotated[Nested[tuple[int, ...]] | None, Form("text", _label_lists, _TEXT, write_labels)]
