"""What a body of batch_statistics holds, and how it is read into arrays."""

from collections.abc import Callable
from fractions import Fraction
from itertools import chain
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import ConfigDict, Field, model_validator, with_config
from typing_extensions import TypedDict

from samestep.app.calculators.batch_statistics.balancing import Routing
from samestep.app.calculators.batch_statistics.channels import groups_of_a_shard
from samestep.app.calculators.batch_statistics.groups import Ints, shape_of
from samestep.app.calculators.batch_statistics.tables import TABLES
from samestep.app.contract.arrays import floats, rectangle
from samestep.app.contract.errors import InputError
from samestep.app.contract.fields import (
    JSON,
    Flag,
    NonNegative,
    OrBlank,
    RawMatrix,
    RawNumber,
    Real,
    number,
    whole_number,
)
from samestep.app.contract.limits import MAX_CELLS, MAX_EXACT_CELLS, MAX_RANKS
from samestep.app.contract.models import Inputs as InputsBase
from samestep.app.contract.numbers import as_float, bounded, exact, whole
from samestep.app.mathematics.window import Numbers

Term = Literal["load_balance", "whiten", "batch_norm", "group_norm"]
Place = Literal["inside", "outside"]

MAX_TOKENS = 10**12
MAX_LENGTH = 10_000
_DEFAULT_EPS = {"load_balance": Fraction(0), "whiten": Fraction(0)}
_TORCH_EPS = Fraction(1, 100_000)

read_count = bounded(whole, low=0, high=MAX_TOKENS)
_read_share = bounded(exact, low=0, high=1)

TopK = Annotated[int, whole_number(1, MAX_LENGTH)]
Parts = Annotated[int, whole_number(1, MAX_CELLS)]
Shards = Annotated[int, whole_number(1, MAX_RANKS)]
Momentum = Annotated[Fraction, number(low=0, high=1)]
OptionalEps = Annotated[NonNegative | None, OrBlank]


@with_config(ConfigDict(extra="forbid"))
class RoutedCell(TypedDict):
    """Tokens of one cell, how many of them each expert was assigned, and the mean router probability of each."""

    tokens: RawNumber
    assigned: list[RawNumber]
    probability: list[RawNumber]


class Inputs(InputsBase):
    """A statistic, and what it is taken of: `cells` for load_balance, `values` for whiten and batch_norm, `samples` for
    group_norm. eps left out is 0 for whiten and 1e-5 for both norms."""

    term: Term = "load_balance"
    top_k: TopK = 1
    cells: Annotated[list[list[RoutedCell]], JSON] = Field(
        default=[
            [{"tokens": 100, "assigned": [100, 0], "probability": ["0.9", "0.1"]}],
            [{"tokens": 100, "assigned": [0, 100], "probability": ["0.1", "0.9"]}],
        ]
    )
    values: Annotated[list[list[list[RawNumber]]], JSON] = Field(
        default=[[[0, 1, 2, 3]], [[4, 5, 6, 7, 8]]], examples=[[[[0, 1, 2, 3]], [[4, 5, 6, 7, 8]]]]
    )
    unbiased: Flag = True
    eps: OptionalEps = None
    eps_place: Place = "inside"
    momentum: Momentum = Fraction(1, 10)
    running_mean: Real = Fraction(0)
    running_var: NonNegative = Fraction(1)
    samples: RawMatrix = Field(default=[[1, 2, 3, 10], [0, 0, 4, 8]], examples=[[[1, 2, 3, 10], [0, 0, 4, 8]]])
    groups: Parts = 1
    shards: Shards = 2

    tables: ClassVar = TABLES

    @model_validator(mode="after")
    def _fits(self) -> "Inputs":
        if self.term == "batch_norm" and not self.used_eps:
            en, zh = "must be greater than 0 for batch_norm", "用 batch_norm 时必须大于 0"
            raise InputError(en, zh, field="eps", code="greater_than")
        return self

    @property
    def used_eps(self) -> Fraction:
        return _DEFAULT_EPS.get(self.term, _TORCH_EPS) if self.eps is None else self.eps


def routing_of(inputs: Inputs) -> Routing:
    """The tokens of a window; InputError names the cell that cannot be used."""
    shape = shape_of(inputs.cells, "cells")
    cells = [cell for row in inputs.cells for cell in row]
    experts = len(cells[0]["assigned"])
    if not experts:
        en, zh = "needs at least one expert", "至少要有一个专家"
        raise InputError(en, zh, field=("cells", 0, 0, "assigned"), code="too_short")
    if experts * len(cells) > MAX_CELLS:
        en, zh = f"hold more than {MAX_CELLS:,} numbers", f"超过 {MAX_CELLS:,} 个数"
        raise InputError(en, zh, field="cells", code="too_long")
    for index, cell in enumerate(cells):
        for name in ("assigned", "probability"):
            if len(cell[name]) != experts:
                en = f"needs {experts} numbers, one an expert, as the first cell has"
                zh = f"应有 {experts} 个数，每个专家一个，与第一个单元格相同"
                raise InputError(en, zh, field=_place(shape[1], index, name), code="shape_mismatch")
    tokens = _wholes([cell["tokens"] for cell in cells], lambda i: _place(shape[1], i, "tokens"))
    assigned = _wholes(
        list(chain.from_iterable(cell["assigned"] for cell in cells)),
        lambda i: (*_place(shape[1], i // experts, "assigned"), i % experts),
    ).reshape(-1, experts)
    unequal = np.flatnonzero(assigned.sum(axis=1) != tokens * inputs.top_k)
    if len(unequal):
        index = int(unequal[0])
        en = f"must add up to top_k · tokens = {int(tokens[index]) * inputs.top_k:,}"
        zh = f"之和须等于 top_k · tokens = {int(tokens[index]) * inputs.top_k:,}"
        raise InputError(en, zh, field=_place(shape[1], index, "assigned"), code="shape_mismatch")
    probability = _shares(
        list(chain.from_iterable(cell["probability"] for cell in cells)),
        lambda i: (*_place(shape[1], i // experts, "probability"), i % experts),
    ).reshape(-1, experts)
    return Routing(shape, inputs.top_k, tokens, assigned, probability)


def _place(width: int, index: int, name: str) -> tuple[str | int, ...]:
    return "cells", *divmod(index, width), name


def _wholes(flat: list[Any], where: Callable[[int], tuple[str | int, ...]]) -> Ints:
    if set(map(type, flat)) == {int} and min(flat) >= 0 and max(flat) <= MAX_TOKENS:
        return np.array(flat, dtype=np.int64)
    return np.array(_read(flat, read_count, where), dtype=np.int64)


def _shares(flat: list[Any], where: Callable[[int], tuple[str | int, ...]]) -> Numbers:
    if len(flat) <= MAX_EXACT_CELLS:
        return np.array(_read(flat, _read_share, where), dtype=object)
    shares = floats(flat, as_float, where)
    outside = np.flatnonzero((shares < 0) | (shares > 1))
    if len(outside):
        index = int(outside[0])
        _read(flat[index : index + 1], _read_share, lambda _: where(index))
    return shares


def _read(flat: list[Any], read: Callable[[object], Any], where: Callable[[int], tuple[str | int, ...]]) -> list[Any]:
    values: list[Any] = []
    try:
        values.extend(map(read, flat))
    except InputError as error:
        raise InputError(error.en, error.zh, field=where(len(values)), code=error.code) from None
    return values


def samples_of(inputs: Inputs) -> tuple[Numbers, int]:
    """Samples (S, C), and how many groups a shard has; InputError where they cannot be divided."""
    rows = inputs.samples
    if not rows:
        raise InputError("needs at least one sample", "至少要有一个样本", field="samples", code="too_short")
    if sum(map(len, rows)) > MAX_CELLS:
        en, zh = f"hold more than {MAX_CELLS:,} values", f"超过 {MAX_CELLS:,} 个值"
        raise InputError(en, zh, field="samples", code="too_long")
    found: Numbers = rectangle(rows, "samples", "sample", "样本")
    if found.size <= MAX_EXACT_CELLS:
        found = np.array([[exact(value) for value in row] for row in rows], dtype=object)
    return found, groups_of_a_shard(found.shape[1], inputs.groups, inputs.shards)
