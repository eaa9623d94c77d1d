"""Rows of a batch as runs of positions with or without a label.

A row holds sequences, packed one behind the other, and then padding. Position i of a sequence that begins at `start` is
position j = start + i of its row. The row is cut at `max_length` positions, so that of a sequence of L tokens
kept = clip(max_length - start, 0, L) are left. A run is a stretch of positions [begin, end) of one sequence of which
all have a label, or none; what holds for runs is counted without laying out a single token.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator

from samestep.app.contract.errors import InputError
from samestep.app.contract.fields import whole_number, whole_numbers
from samestep.app.contract.limits import MAX_CELLS

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]
Floats = NDArray[np.float64]

IGNORED = -100
"""The label that `torch.nn.functional.cross_entropy` leaves out unless told otherwise."""
MAX_LENGTH = 10**7
_INT32 = 2**31
_UNCUT = 2**62

Length = Annotated[int, whole_number(1, MAX_LENGTH)]
Padding = Annotated[int, whole_number(0, MAX_LENGTH)]
Lengths = Annotated[tuple[int, ...], whole_numbers(1, MAX_LENGTH).in_json()]
Prompts = Annotated[tuple[int, ...], whole_numbers(0, MAX_LENGTH).in_json()]
PadId = Annotated[int, whole_number(-_INT32, _INT32 - 1)]
Token = Annotated[int, Field(strict=True, ge=-_INT32, lt=_INT32)]
Tokens = Annotated[list[Token], Field(min_length=1, max_length=MAX_CELLS)]
Mask = Annotated[list[Literal[0, 1]], Field(min_length=1, max_length=MAX_CELLS)]


class Row(BaseModel):
    """One row of a microbatch, given in one of three ways:

    `lengths` of its sequences (one, or several that are packed), the first `prompts` tokens of each without a label;
    `labels` as they go into the model, aligned with its inputs, -100 where there is none;
    `tokens` with a `mask` that is 1 where a token is a label too.
    The last two may name the `starts` of packed sequences (0 first), and an `attention_mask` whose zeros at the end are
    padding. `padding` says how many positions follow, where it is not the calculator's to find.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    lengths: Lengths | None = Field(default=None, examples=[[5, 3]])
    prompts: Prompts = (0,)
    labels: Tokens | None = None
    tokens: Tokens | None = None
    mask: Mask | None = None
    starts: Annotated[list[Padding], Field(min_length=1, max_length=MAX_CELLS)] | None = None
    attention_mask: Mask | None = None
    padding: Padding | None = None
    max_length: Length | None = None

    @model_validator(mode="after")
    def _one_way(self) -> "Row":
        ways = [name for name in ("lengths", "labels", "tokens") if getattr(self, name) is not None]
        if len(ways) != 1:
            en, zh = "needs exactly one of lengths, labels and tokens", "lengths、labels、tokens 应给且只给一个"
            raise InputError(en, zh, field=ways[1] if ways else "lengths", code="exclusive")
        count = len(self.lengths if self.lengths is not None else self.labels or self.tokens or ())
        if len(self.prompts) not in (1, count) or (self.lengths is None and self.prompts != (0,)):
            en, zh = "need one number, or one for each of lengths", "应为一个数，或与 lengths 一一对应"
            raise InputError(en, zh, field="prompts", code="shape_mismatch")
        for name in ("mask", "attention_mask"):
            values = getattr(self, name)
            if values is not None and (self.lengths is not None or len(values) != count):
                en, zh = "needs one entry for each label or token", "应与标签或 token 一一对应"
                raise InputError(en, zh, field=name, code="shape_mismatch")
        if self.mask is not None and self.tokens is None:
            raise InputError("belongs to tokens", "要与 tokens 一起给", field="mask", code="exclusive")
        self._check_places(count)
        return self

    def _check_places(self, count: int) -> None:
        real = self.attention_mask
        if real is not None and real != sorted(real, reverse=True):
            en, zh = "must be ones and then zeros: padding stands at the end", "应先全是 1、再全是 0：填充在末尾"
            raise InputError(en, zh, field="attention_mask", code="left_padding")
        if real is not None and self.padding is not None:
            raise InputError("says the padding already", "已经说明了填充", field="attention_mask", code="exclusive")
        places = self.starts
        if places is None:
            return
        if self.lengths is not None or places[0] != 0 or any(b <= a for a, b in pairwise([*places, count])):
            en, zh = "must begin with 0, rise, and stay inside the row", "应从 0 开始、递增，且不超出这一行"
            raise InputError(en, zh, field="starts", code="starts")

    @property
    def targets(self) -> list[int] | None:
        """The labels of a row that is not given by lengths, without its padding."""
        labels = self.labels
        if self.tokens is not None:
            mask = self.mask or [1] * len(self.tokens)
            labels = [token if is_label else IGNORED for token, is_label in zip(self.tokens, mask, strict=True)]
        if labels is not None and self.attention_mask is not None:
            labels = labels[: sum(self.attention_mask)]
        return labels


Cells = Sequence[Sequence[Sequence[Row]]]
"""[rank][microstep][row]"""


@dataclass(frozen=True, eq=False)
class Runs:
    """The runs of all rows, (runs,) each; the rows, (rows,) each; and the labels that are ends of text, (ends,) each.

    `later` runs belong to a sequence that is not the first of its row. An end is position `end_at` of run `end_run`.
    """

    row: Ints
    start: Ints
    later: Flags
    begin: Ints
    end: Ints
    kept: Ints
    labelled: Flags
    end_run: Ints
    end_at: Ints
    cell_of_row: Ints
    tokens: Ints
    cut: Ints
    padding: Ints
    cells: int

    def per_cell(self, rows: Ints, counts: Ints) -> Ints:
        """Sums over each cell of numbers that belong to rows."""
        sums = np.bincount(self.cell_of_row[rows], weights=counts, minlength=self.cells)
        return sums.astype(np.int64)


PadTo = Literal["longest", "max_length", "none"]


def lay_out(cells: Cells, max_length: int | None, pad_to: PadTo, pad_id: int | None) -> Runs:
    """The runs of all rows. `max_length` holds for rows without their own.

    `pad_id` tells the ends of text among labels; without it, and in rows given by lengths, each sequence's last token
    is one.
    """
    runs: list[tuple[int, int, bool, int, int, int, bool]] = []
    ends: list[tuple[int, int]] = []
    rows: list[tuple[int, int, int, int | None]] = []
    flat = [rows_of_cell for rank in cells for rows_of_cell in rank]
    for cell, members in enumerate(flat):
        for row in members:
            cut = row.max_length or max_length or _UNCUT
            place = 0
            for length, stretches, last in _sequences(row, pad_id):
                kept = min(max(cut - place, 0), length)
                ends += [(len(runs) + i, at) for i, at in last]
                runs += [(len(rows), place, place > 0, *stretch[:2], kept, stretch[2]) for stretch in stretches]
                place += length
            given = row.padding if row.attention_mask is None else row.attention_mask.count(0)
            rows.append((cell, place, min(place, cut), given))
    of_row, start, later, begin, end, of_kept, labelled = _columns(runs, 7)
    cell_of_row, tokens, kept_tokens = _columns([one[:3] for one in rows], 3)
    end_run, end_at = _columns(ends, 2)
    longest = np.zeros(len(flat), dtype=np.int64)
    np.maximum.at(longest, cell_of_row, kept_tokens)
    filled = longest[cell_of_row] if pad_to == "longest" else kept_tokens
    if pad_to == "max_length":
        filled = np.maximum(kept_tokens, max_length or 0)
    padding = filled - kept_tokens
    for i, one in enumerate(rows):
        if one[3] is not None:
            padding[i] = one[3]
    return Runs(
        row=of_row,
        start=start,
        later=later.astype(bool),
        begin=begin,
        end=end,
        kept=of_kept,
        labelled=labelled.astype(bool),
        end_run=end_run,
        end_at=end_at,
        cell_of_row=cell_of_row,
        tokens=tokens,
        cut=tokens - kept_tokens,
        padding=padding,
        cells=len(flat),
    )


def _columns(rows: Sequence[tuple[int, ...]], width: int) -> list[Ints]:
    return list(np.array(rows, dtype=np.int64).reshape(-1, width).T)


Stretch = tuple[int, int, bool]


def _sequences(row: Row, pad_id: int | None) -> list[tuple[int, list[Stretch], list[tuple[int, int]]]]:
    """Each sequence's length, its stretches (begin, end, labelled), and its ends of text (stretch, position)."""
    if row.lengths is not None:
        prompts = row.prompts if len(row.prompts) > 1 else row.prompts * len(row.lengths)
        return [_by_length(length, min(prompt, length)) for length, prompt in zip(row.lengths, prompts, strict=True)]
    labels = np.array(row.targets, dtype=np.int64)
    places = [at for at in row.starts or [0] if at < len(labels)]
    return [_by_labels(labels[a:b], pad_id) for a, b in pairwise([*places, len(labels)])]


def _by_length(length: int, prompt: int) -> tuple[int, list[Stretch], list[tuple[int, int]]]:
    if prompt == length:
        return length, [(0, length, False)], []
    if prompt == 0:
        return length, [(0, length, True)], [(0, length - 1)]
    return length, [(0, prompt, False), (prompt, length, True)], [(1, length - 1)]


def _by_labels(labels: Ints, pad_id: int | None) -> tuple[int, list[Stretch], list[tuple[int, int]]]:
    flags = labels != IGNORED
    borders = [0, *(np.flatnonzero(flags[1:] != flags[:-1]) + 1).tolist(), len(labels)]
    stretches = [(a, b, bool(flags[a])) for a, b in pairwise(borders)]
    if pad_id is None:
        return len(labels), stretches, [(len(stretches) - 1, len(labels) - 1)] if flags[-1] else []
    found = np.flatnonzero(flags & (labels == pad_id))
    inside = np.searchsorted(borders, found, side="right") - 1
    return len(labels), stretches, list(zip(inside.tolist(), found.tolist(), strict=True))
