"""The batches of an evaluation: how a body writes them, and how they are read into columns.

`cells[r][b]` is batch b of rank r; ranks may have different numbers of batches, also none. A cell holds how many items
(tokens, samples) are new, `n`, and how many the sampler padded with, `repeated_n`; the mean loss of each; how many of
each are predicted right; and counts for F1. What a cell leaves out is 0. Up to MAX_EXACT_CELLS cells are read exactly,
more of them as float64.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, NotRequired

import numpy as np
from pydantic import ConfigDict, with_config
from typing_extensions import TypedDict

from samestep.app.contract.arrays import floats
from samestep.app.contract.errors import InputError
from samestep.app.contract.fields import RawNumber
from samestep.app.contract.limits import MAX_CELLS, MAX_EXACT_CELLS
from samestep.app.contract.numbers import as_float, bounded, exact, whole
from samestep.app.contract.tables import Columns, in_rows
from samestep.app.mathematics.ragged import place
from samestep.app.mathematics.window import Numbers, Window, total

MAX_COUNT = 10**15
COUNTS = ("n", "correct", "tp", "fp", "fn", "repeated_n", "repeated_correct")
LOSSES = ("loss", "repeated_loss")
ACCURACY = ("correct", "repeated_correct")
F1 = ("tp", "fp", "fn")

TABLE_COLUMNS = ("batch", "microstep", "loss", *COUNTS[1:], "repeated_loss")

_count = bounded(whole, low=0, high=MAX_COUNT)


@with_config(ConfigDict(extra="forbid"))
class Cell(TypedDict):
    """One batch of one rank: `loss` is the mean of its `n` new items, `repeated_loss` that of its repeats."""

    n: RawNumber
    loss: NotRequired[RawNumber]
    correct: NotRequired[RawNumber]
    tp: NotRequired[RawNumber]
    fp: NotRequired[RawNumber]
    fn: NotRequired[RawNumber]
    repeated_n: NotRequired[RawNumber]
    repeated_loss: NotRequired[RawNumber]
    repeated_correct: NotRequired[RawNumber]


@dataclass(frozen=True, eq=False)
class Level:
    """Sums over the items of every batch, or of every rank, and how many items those are; (E,) each."""

    sums: Numbers
    mass: Numbers


@dataclass(frozen=True, eq=False)
class Batches:
    """The columns of all cells, laid end to end: (C,) each; `sizes[r]` of them are rank r's. `given` are the names of
    the fields that any cell has."""

    sizes: tuple[int, ...]
    columns: dict[str, Numbers]
    given: frozenset[str]

    def by_rank(self, values: Numbers) -> Numbers:
        """Sums over the batches of each rank: (C,) to (P,)."""
        return self._window.by_replica(values)

    @cached_property
    def _window(self) -> Window:
        """For its sums by replica alone."""
        return Window(self.sizes, self.columns["n"], self.columns["n"])

    @property
    def is_exact(self) -> bool:
        return self._window.is_exact

    @cached_property
    def count(self) -> int:
        """N: the new items of all batches."""
        return int(total(self.columns["n"]))

    @cached_property
    def repeated(self) -> int:
        return int(total(self.columns["repeated_n"]))

    @cached_property
    def mass(self) -> Numbers:
        """What a batch holds, repeats among them."""
        return self.columns["n"] + self.columns["repeated_n"]

    @cached_property
    def losses(self) -> Level:
        columns = self.columns
        sums = columns["n"] * columns["loss"] + columns["repeated_n"] * columns["repeated_loss"]
        return Level(sums, self.mass)

    @cached_property
    def new_losses(self) -> Level:
        return Level(self.columns["n"] * self.columns["loss"], self.columns["n"])

    @cached_property
    def right(self) -> Level:
        """Right predictions, repeats among them."""
        return Level(self.columns["correct"] + self.columns["repeated_correct"], self.mass)

    @cached_property
    def new_right(self) -> Level:
        return Level(self.columns["correct"], self.columns["n"])

    @cached_property
    def f1(self) -> Level:
        """F1 = 2tp/(2tp + fp + fn) as a quotient of sums."""
        twice = 2 * self.columns["tp"]
        return Level(twice, twice + self.columns["fp"] + self.columns["fn"])

    def ranks_of(self, level: Level) -> Level:
        """The same of every rank: (P,)."""
        return Level(self.by_rank(level.sums), self.by_rank(level.mass))


def cells_of_table(columns: Columns) -> dict[str, Any]:
    """The cells of a table with one line a batch; batches keep the file's order where no column numbers them."""
    rows = in_rows(columns, place="batch" if "batch" in columns else "microstep")
    names = list(rows)
    return {
        "cells": [
            [dict(zip(names, cell, strict=True)) for cell in zip(*(rows[name][r] for name in names), strict=True)]
            for r in range(len(rows["n"]))
        ]
    }


def read(cells: Sequence[Sequence[Cell]]) -> Batches:
    """The columns of a body's cells; InputError names the cell and its field."""
    sizes = tuple(map(len, cells))
    if sum(sizes) > MAX_CELLS:
        raise InputError(f"has more than {MAX_CELLS:,} cells", f"超过 {MAX_CELLS:,} 格", field="cells", code="too_long")
    flat = list(chain.from_iterable(cells))
    given = frozenset(chain.from_iterable(flat))
    exactly = len(flat) <= MAX_EXACT_CELLS
    columns = {name: _column(flat, name, sizes, exactly, name in given) for name in (*COUNTS, *LOSSES)}
    for part, whole_of in (("correct", "n"), ("repeated_correct", "repeated_n")):
        too_many = columns[part] > columns[whole_of]
        if np.any(too_many):
            en, zh = f"is more than {whole_of}: no more can be right", f"大于 {whole_of}：对的不会比总数多"
            raise InputError(en, zh, field=_path(sizes, int(np.argmax(too_many)), part), code="less_than_equal")
    return Batches(sizes, columns, given)


def _path(sizes: tuple[int, ...], index: int, name: str) -> tuple[str | int, ...]:
    return ("cells", *place(sizes, index), name)


def _column(flat: list[Cell], name: str, sizes: tuple[int, ...], exactly: bool, given: bool) -> Numbers:
    if not given:
        return np.full(len(flat), exact(0), dtype=object) if exactly else np.zeros(len(flat))
    values = [cell.get(name, 0) for cell in flat]
    number: Callable[[object], Any] = _count if name in COUNTS else exact
    if exactly:
        return np.array(_read_all(values, number, name, sizes), dtype=object)
    column = floats(values, as_float, lambda index: _path(sizes, index, name))
    if name in COUNTS:
        odd = (column < 0) | (column > MAX_COUNT) | (column % 1 != 0)
        if odd.any():
            first = int(np.argmax(odd))
            _read_all([0] * first + [values[first]], number, name, sizes)
    return column


def _read_all(values: list[Any], number: Callable[[object], Any], name: str, sizes: tuple[int, ...]) -> list[Any]:
    read_values: list[Any] = []
    try:
        for value in values:
            read_values.append(exact(number(value)))
    except InputError as error:
        raise InputError(error.en, error.zh, field=_path(sizes, len(read_values), name), code=error.code) from None
    return read_values
