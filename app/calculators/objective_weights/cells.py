"""Lengths of sequences in the cells of a window, as they are typed: `4+2,8;3,0` is two replicas of two microsteps."""

import re
from itertools import chain
from typing import Annotated, Any

from samestep.app.calculators.objective_weights.partition import (
    MAX_SEQUENCES,
    MAX_TOKENS,
    Cells,
    Partition,
    shape_of,
)
from samestep.app.contract.errors import InputError
from samestep.app.contract.forms import Form
from samestep.app.contract.limits import MAX_RANKS
from samestep.app.contract.numbers import bounded, whole
from samestep.app.contract.rows import split_rows

MAX_LENGTH = 10**7

_PLUS = re.compile(r"[+＋\s]+")
_length = bounded(whole, low=0, high=MAX_LENGTH)


def _cells(value: object) -> Cells:
    """Cells as nested lists, or as text: `4+2,8;3,0` has two replicas of two microsteps, the last of them empty."""
    if isinstance(value, str) and not value.strip():
        raise InputError("is blank: lengths are needed", "为空：这里需要长度", code="blank")
    rows = split_rows(value) if isinstance(value, str) else value
    if not isinstance(rows, list | tuple) or not all(isinstance(row, list | tuple) for row in rows):
        raise InputError(
            "must be rows of cells such as 4+2,8;3,0", "应写成单元格的行，例如 4+2,8;3,0", code="rows_type"
        )
    read = tuple(tuple(_cell(cell, r, k) for k, cell in enumerate(row)) for r, row in enumerate(rows))
    if shape_of(read) is None:
        raise InputError(
            "need as many cells in every row, at least one", "每行的单元格数须相同，至少一个", code="ragged"
        )
    count = sum(len(cell) for row in read for cell in row)
    if len(read) > MAX_RANKS or max(count, len(read) * len(read[0])) > MAX_SEQUENCES:
        en = f"hold more than {MAX_RANKS:,} replicas or {MAX_SEQUENCES:,} sequences or cells"
        zh = f"超过 {MAX_RANKS:,} 个副本，或 {MAX_SEQUENCES:,} 条序列或单元格"
        raise InputError(en, zh, code="too_long")
    if sum(chain.from_iterable(chain.from_iterable(read))) > MAX_TOKENS:
        raise InputError(f"hold more than {MAX_TOKENS:,} tokens", f"超过 {MAX_TOKENS:,} 个 token", code="too_long")
    return read


def _cell(cell: object, row: int, column: int) -> tuple[int, ...]:
    """The lengths in one cell; a lone 0, or nothing, is an empty cell."""
    parts: Any = [part for part in _PLUS.split(cell) if part] if isinstance(cell, str) else cell
    try:
        lengths = tuple(map(_length, parts if isinstance(parts, list | tuple) else [parts]))
        if lengths == (0,):
            return ()
        if 0 in lengths:
            en, zh = (
                "holds a sequence without tokens, which has no mean: leave it out",
                "含没有 token 的序列，它没有均值：请去掉",
            )
            raise InputError(en, zh, code="greater_than")
    except InputError as error:
        place_en, place_zh = f"row {row + 1}, cell {column + 1} ", f"第 {row + 1} 行第 {column + 1} 格"
        raise InputError(place_en + error.en, place_zh + error.zh, code=error.code) from None
    return lengths


def _text(cells: Cells) -> str:
    return Partition.of("given", cells).text()


_SCHEMA = {
    "anyOf": [
        {"type": "array", "items": {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}}},
        {"type": "string", "examples": ["4+2;8"]},
    ]
}
_form = Form("json", _cells, _SCHEMA, _text, textual=True)
Sequences = Annotated[Cells, _form]
OptionalSequences = Annotated[Cells | None, _form.optional()]
