"""Sampled completions in the cells of an update, as a body or an address holds them, read into arrays.

`completions[r][k]` is the microbatch of rank r and microstep k, each completion with its length in tokens, its prompt
group and perhaps a reward. In an address lengths, groups and rewards are rows of cells: `10+10;100+300` has two ranks
of one microstep, and a blank cell is empty. Arrays over completions are flat, rank by rank and microstep by microstep:
the order in which a gather over ranks returns a generation batch.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import chain
from typing import Annotated, Any, NotRequired

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, Field, with_config
from typing_extensions import TypedDict

from samestep.app.contract.arrays import Path, floats
from samestep.app.contract.errors import InputError
from samestep.app.contract.fields import RawNumber
from samestep.app.contract.forms import Form
from samestep.app.contract.limits import MAX_CELLS, MAX_EXACT_CELLS, MAX_LISTED_CELLS, MAX_RANKS
from samestep.app.contract.numbers import as_float, as_json, bounded, exact, whole
from samestep.app.contract.rows import split_members, write_members

Ints = NDArray[np.int64]

MAX_LENGTH = 10**9
MAX_TOKENS = 10**12
"""With at most MAX_CELLS cells or completions no product of two counts leaves 63 bits."""
MAX_GROUP = 2**53

_length = bounded(whole, low=0, high=MAX_LENGTH)
_group = bounded(whole, low=0, high=MAX_GROUP)


@with_config(ConfigDict(extra="forbid"))
class Completion(TypedDict):
    """One sampled answer: its tokens that carry loss, its prompt, the reward it was given."""

    length: RawNumber
    group: RawNumber
    reward: NotRequired[RawNumber | None]


Completions = Annotated[list[list[list[Completion]]], Form("json"), Field(min_length=1, max_length=MAX_RANKS)]


@dataclass(frozen=True, eq=False)
class Rollout:
    """The completions of one update: `lengths`, `labels` (0, 1, … for the groups in order of their appearance), the
    flat `cell` of each, all (B,); exact `rewards`, None where none are given or above MAX_LISTED_CELLS completions."""

    ranks: int
    microsteps: int
    lengths: Ints
    labels: Ints
    cell: Ints
    rewards: list[Fraction] | None

    @cached_property
    def cells(self) -> int:
        return self.ranks * self.microsteps

    @cached_property
    def counts(self) -> Ints:
        """B_rk: (P·K,)."""
        return np.bincount(self.cell, minlength=self.cells).astype(np.int64)

    @cached_property
    def tokens(self) -> Ints:
        """T_rk: (P·K,)."""
        return _sums(self.lengths, self.cell, self.cells)

    @cached_property
    def rank_counts(self) -> Ints:
        """B_r of every cell's rank: (P·K,)."""
        of_rank = self.counts.reshape(self.ranks, self.microsteps).sum(axis=1)
        return np.repeat(of_rank, self.microsteps)

    @cached_property
    def total(self) -> int:
        """N."""
        return int(self.lengths.sum())

    @cached_property
    def groups(self) -> int:
        return int(self.labels.max(initial=-1)) + 1

    @cached_property
    def group_tokens(self) -> Ints:
        """T_g: (groups,)."""
        return _sums(self.lengths, self.labels, self.groups)

    @cached_property
    def is_exact(self) -> bool:
        return len(self.lengths) <= MAX_EXACT_CELLS


def _sums(values: Ints, index: Ints, size: int) -> Ints:
    """Sums of whole numbers by index; float64 holds them, see MAX_TOKENS."""
    return np.bincount(index, weights=values, minlength=size).astype(np.int64)


def rollout_of(completions: list[list[list[Completion]]]) -> Rollout:
    """Read a body's completions; InputError names the one that cannot be used."""
    microsteps = _microsteps(completions)
    cells = list(chain.from_iterable(completions))
    sizes = list(map(len, cells))
    if max(sum(sizes), len(cells)) > MAX_CELLS:
        en, zh = f"hold more than {MAX_CELLS:,} completions or cells", f"超过 {MAX_CELLS:,} 个回答或单元格"
        raise InputError(en, zh, field="completions", code="too_long")
    flat = list(chain.from_iterable(cells))
    place = _Places(sizes, microsteps)
    lengths = _whole_numbers(flat, "length", _length, MAX_LENGTH, place)
    if lengths.sum(dtype=np.float64) > MAX_TOKENS:
        en, zh = f"hold more than {MAX_TOKENS:,} tokens", f"超过 {MAX_TOKENS:,} 个 token"
        raise InputError(en, zh, field="completions", code="too_long")
    return Rollout(
        ranks=len(completions),
        microsteps=microsteps,
        lengths=lengths,
        labels=_in_order(_whole_numbers(flat, "group", _group, MAX_GROUP, place)),
        cell=np.repeat(np.arange(len(cells)), sizes),
        rewards=_rewards(flat, place),
    )


def _microsteps(completions: list[list[list[Completion]]]) -> int:
    """K; InputError where ranks differ in it or there is none."""
    for r, row in enumerate(completions):
        if len(row) != len(completions[0]) or not row:
            en = f"of rank {r} has {len(row)} microsteps; every rank needs as many as the first, at least one"
            zh = f"在 rank {r} 有 {len(row)} 个微步；每个 rank 应与第一个同样多，且至少一个"
            raise InputError(en, zh, field=("completions", r), code="shape_mismatch")
    return len(completions[0])


class _Places:
    """Where a flat index stands in the body."""

    def __init__(self, sizes: list[int], microsteps: int) -> None:
        self._sizes = sizes
        self._microsteps = microsteps

    def path(self, index: int, name: str) -> Path:
        ends = np.cumsum(self._sizes)
        cell = int(np.searchsorted(ends, index, side="right"))
        inside = index - int(ends[cell] - self._sizes[cell])
        return ("completions", *divmod(cell, self._microsteps), inside, name)


def _whole_numbers(flat: list[Completion], name: str, read: Callable[[object], int], high: int, place: _Places) -> Ints:
    values: list[Any] = [completion[name] for completion in flat]  # type: ignore[literal-required]
    if set(map(type, values)) <= {int}:
        try:
            array = np.array(values, dtype=np.int64)
        except OverflowError:  # the reading below names its place
            array = np.array([-1])
        if not len(array) or (array.min() >= 0 and array.max() <= high):
            return array
    return np.array(_read_all(values, read, name, place), dtype=np.int64)


def _read_all(values: list[Any], read: Callable[[object], Any], name: str, place: _Places) -> list[Any]:
    read_ones: list[Any] = []
    try:
        read_ones.extend(map(read, values))
    except InputError as error:
        path = place.path(len(read_ones), name)
        raise InputError(error.en, error.zh, field=path, code=error.code) from None
    return read_ones


def _in_order(groups: Ints) -> Ints:
    """Labels 0, 1, … in order of first appearance."""
    count = len(groups)
    dense = groups if groups.max(initial=0) < 4 * count else np.unique(groups, return_inverse=True)[1]
    first = np.full(int(dense.max(initial=-1)) + 1, count)
    first[dense[::-1]] = np.arange(count)[::-1]
    rank = np.empty_like(first)
    rank[np.argsort(first, kind="stable")] = np.arange(len(first))
    return rank[dense]


def _rewards(flat: list[Completion], place: _Places) -> list[Fraction] | None:
    values = [completion.get("reward") for completion in flat]
    missing = values.count(None)
    if missing == len(values):
        return None
    if missing:
        en, zh = "is missing: other completions have one", "缺失：别的回答有奖励"
        raise InputError(en, zh, field=place.path(values.index(None), "reward"), code="missing")
    if len(values) > MAX_LISTED_CELLS:  # no list of advantages can be answered: only read
        floats(values, as_float, lambda index: place.path(index, "reward"))
        return None
    return _read_all(values, exact, "reward", place)


# ---- the fields of an address

Cells = tuple[tuple[tuple[Fraction, ...], ...], ...]


def _cells(value: object) -> Cells:
    """Rows of cells of exact numbers; InputError names row, cell and number."""
    if isinstance(value, str) and not value.strip():
        raise InputError("is blank: numbers are needed", "为空：这里需要数", code="blank")
    rows = split_members(value) if isinstance(value, str) else value
    if not isinstance(rows, list | tuple):
        raise InputError(
            "must be rows of cells such as 10+10;100+300", "应写成单元格的行，例如 10+10;100+300", code="rows_type"
        )
    return tuple(tuple(_cell(cell, r, k) for k, cell in enumerate(row)) for r, row in enumerate(rows))


def _cell(cell: Sequence[object], row: int, column: int) -> tuple[Fraction, ...]:
    try:
        return tuple(map(exact, cell))
    except InputError as error:
        place_en, place_zh = f"row {row + 1}, cell {column + 1} ", f"第 {row + 1} 行第 {column + 1} 格"
        raise InputError(place_en + error.en, place_zh + error.zh, code=error.code, cell=(row, column)) from None


_SCHEMA = {"type": "string", "examples": ["10+10;100+300"]}
_form = Form("json", _cells, _SCHEMA, write_members, textual=True)
CellsText = Annotated[Cells, _form]
OptionalCellsText = Annotated[Cells | None, _form.optional()]


def completions_of(lengths: Cells, groups: Cells, rewards: Cells | None) -> list[list[list[dict[str, Any]]]]:
    """The body's completions of an address; InputError names the field that has another shape, and what is wrong in
    it."""
    columns = {"length": lengths, "group": groups} | ({} if rewards is None else {"reward": rewards})
    for (name, column), field in zip(columns.items(), ("lengths", "groups", "rewards"), strict=False):
        if [list(map(len, row)) for row in column] != [list(map(len, row)) for row in lengths]:
            en, zh = "need one number for each completion of lengths", "须与 lengths 中的回答一一对应"
            raise InputError(en, zh, field=field, code="shape_mismatch")
        _checked(column, {"length": _length, "group": _group}.get(name, exact), field)
    return [
        [
            [
                {name: as_json(column[r][k][i]) for name, column in columns.items()}
                for i in range(len(cell))
            ]
            for k, cell in enumerate(row)
        ]
        for r, row in enumerate(lengths)
    ]  # fmt: skip


def _checked(column: Cells, read: Callable[[object], Any], field: str) -> None:
    for r, row in enumerate(column):
        for k, cell in enumerate(row):
            try:
                list(map(read, cell))
            except InputError as error:
                place_en, place_zh = f"row {r + 1}, cell {k + 1} ", f"第 {r + 1} 行第 {k + 1} 格"
                raise InputError(
                    place_en + error.en, place_zh + error.zh, field=field, code=error.code, cell=(r, k)
                ) from None
