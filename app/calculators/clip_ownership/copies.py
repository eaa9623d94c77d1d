"""Gradients that lie on several ranks, some of them as copies on more than one: who holds what, and who owns it.

A gradient `id` may be held by several ranks; exactly one of these copies is the owner's, the one that counts in
statistics. `ranks[r][k].grad` has as many values as every other copy of its id; a rank may hold none. Arrays lie flat,
copy after copy, rank after rank.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Annotated, NotRequired

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, Field, StrictBool, with_config
from typing_extensions import TypedDict

from samestep.app.contract.arrays import Floats, Path, floats
from samestep.app.contract.errors import InputError
from samestep.app.contract.fields import RawExtended, RawNumber
from samestep.app.contract.limits import MAX_CELLS, MAX_LISTED_CELLS
from samestep.app.contract.numbers import as_float, extended
from samestep.app.mathematics.ragged import cut, place

Flags = NDArray[np.bool_]
Counts = NDArray[np.intp]


@with_config(ConfigDict(extra="forbid"))
class GradientCopy(TypedDict):
    """What one rank holds of one gradient: the scaled values, and the parameters that belong to them.

    `expert` marks a gradient that exists only where its expert lives; the owner's mark decides.
    """

    id: Annotated[str, Field(min_length=1, max_length=200)]
    grad: list[RawExtended]
    owner: StrictBool
    param: NotRequired[list[RawNumber] | None]
    expert: NotRequired[StrictBool]


@dataclass(frozen=True, eq=False)
class Copies:
    """All copies laid end to end. `scaled` and `param` have one entry an element, the other arrays one a copy."""

    held: tuple[int, ...]
    """How many copies each rank holds, [P]."""
    names: list[str]
    size: Counts
    owner: Flags
    origin: Counts
    """The index of the owner's copy of the same id."""
    expert: Flags
    scaled: Floats
    param: Floats | None

    @classmethod
    def of(cls, ranks: Sequence[Sequence[GradientCopy]]) -> "Copies":
        """InputError names the copy that does not fit the others, or the value that cannot be read."""
        copies = list(chain.from_iterable(ranks))
        places = [(r, k) for r, rank in enumerate(ranks) for k in range(len(rank))]
        sizes = [len(copy["grad"]) for copy in copies]
        if sum(max(1, size) for size in sizes) > MAX_CELLS:
            en, zh = f"hold more than {MAX_CELLS:,} values", f"的值超过 {MAX_CELLS:,} 个"
            raise InputError(en, zh, field="ranks", code="too_long")
        origins = _origins(copies, places)
        _check_lengths(copies, places, origins)
        origin = np.array(origins, dtype=np.intp)
        marked = np.array([copy.get("expert", False) for copy in copies], dtype=np.bool_)
        params = [copy.get("param") for copy in copies]
        all_given = bool(params) and None not in params
        return cls(
            held=tuple(map(len, ranks)),
            names=[copy["id"] for copy in copies],
            size=np.array(sizes, dtype=np.intp),
            owner=origin == np.arange(len(copies)),
            origin=origin,
            expert=marked[origin],
            scaled=_read([copy["grad"] for copy in copies], places, "grad", extended),
            param=_read([param or [] for param in params], places, "param", as_float) if all_given else None,
        )

    @property
    def ranks(self) -> int:
        """P."""
        return len(self.held)

    @cached_property
    def rank(self) -> Counts:
        """The rank that holds a copy, one entry a copy."""
        return np.repeat(np.arange(self.ranks), self.held)

    @cached_property
    def element_rank(self) -> Counts:
        return np.repeat(self.rank, self.size)

    @cached_property
    def owned(self) -> Flags:
        """Whether an element belongs to the owner's copy, one entry an element."""
        return np.repeat(self.owner, self.size)

    @cached_property
    def rank_size(self) -> Counts:
        """How many elements each rank holds, [P]."""
        return np.bincount(self.element_rank, minlength=self.ranks)

    @property
    def listed(self) -> bool:
        """Whether there are few enough of them to list."""
        return max(len(self.scaled), len(self.names)) <= MAX_LISTED_CELLS

    def agree(self) -> bool:
        """Whether every copy equals its owner's."""
        if self.owner.all():
            return True
        start = np.cumsum(self.size) - self.size
        owners_element = np.arange(len(self.scaled)) + np.repeat(start[self.origin] - start, self.size)
        return np.array_equal(self.scaled, self.scaled[owners_element], equal_nan=True)

    def nested(self, values: Floats) -> list[list[tuple[str, list[float]]]]:
        """For every rank, the (id, values) of its copies."""
        lists = cut(values.tolist(), self.size.tolist())
        return cut(list(zip(self.names, lists, strict=True)), self.held)


def _origins(copies: Sequence[GradientCopy], places: Sequence[tuple[int, int]]) -> list[int]:
    """For every copy, the index of its owner's; one of all copies owns an id, and each rank holds it once."""
    owners: dict[str, int] = {}
    for index, copy in enumerate(copies):
        if copy["owner"] and owners.setdefault(copy["id"], index) != index:
            r, first, name = places[index][0], places[owners[copy["id"]]][0], copy["id"]
            en = f"makes rank {r} a second owner of “{name}”; rank {first} owns it already"
            zh = f"使 rank {r} 成为“{name}”的第二个拥有者；rank {first} 已拥有它"
            raise InputError(en, zh, field=("ranks", *places[index], "owner"), code="two_owners")
    origins, seen = [], set()
    for copy, (r, k) in zip(copies, places, strict=True):
        name = copy["id"]
        if name not in owners:
            en = f"leaves “{name}” of rank {r} without an owner: exactly one copy has owner true"
            zh = f"使 rank {r} 的“{name}”没有拥有者：恰有一份拷贝的 owner 为 true"
            raise InputError(en, zh, field=("ranks", r, k, "owner"), code="no_owner")
        if (r, name) in seen:
            en, zh = f"is a second copy of “{name}” on rank {r}", f"是 rank {r} 上“{name}”的第二份拷贝"
            raise InputError(en, zh, field=("ranks", r, k, "id"), code="duplicate")
        seen.add((r, name))
        origins.append(owners[name])
    return origins


def _check_lengths(copies: Sequence[GradientCopy], places: Sequence[tuple[int, int]], origins: Sequence[int]) -> None:
    """Copies are as long as their owner's; parameters fit the gradients, and are given for all copies or for none."""
    with_param = any(copy.get("param") is not None for copy in copies)
    for copy, (r, k), origin in zip(copies, places, origins, strict=True):
        size, name, param = len(copy["grad"]), copy["id"], copy.get("param")
        if size != len(copies[origin]["grad"]):
            en = f"of rank {r} has another length than the owner's “{name}” on rank {places[origin][0]}"
            zh = f"（rank {r}）与拥有者 rank {places[origin][0]} 的“{name}”长度不同"
            raise InputError(en, zh, field=("ranks", r, k, "grad"), code="shape_mismatch")
        if with_param and (param is None or len(param) != size):
            en = f"of “{name}” on rank {r} needs {size} values, one for each of grad (or give no param at all)"
            zh = f"（rank {r} 的“{name}”）需要 {size} 个值，与 grad 一一对应（或全都不给 param）"
            raise InputError(en, zh, field=("ranks", r, k, "param"), code="shape_mismatch")


def _read(
    lists: Sequence[list[int | float | str]],
    places: Sequence[tuple[int, int]],
    field: str,
    read: Callable[[object], float],
) -> Floats:
    def path(index: int) -> Path:
        copy, element = place(list(map(len, lists)), index)
        return ("ranks", *places[copy], field, element)

    return floats(list(chain.from_iterable(lists)), read, path)
