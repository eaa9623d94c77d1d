"""One clipping coefficient for gradients that lie on several ranks, some of them as copies on more than one.

Words and symbols: rank r of P; a gradient `id` may be held by several ranks, and exactly one of these copies is the
owner's, the one that counts in the statistics. U_r are the elements that rank r owns, S is `loss_scale`, and with
C = `max_norm`, p = `norm_type`, e = `eps`

    g = scaled / S,   n = (sum_r sum_{j in U_r} |g_j|^p)^(1/p)   (p = inf: the maximum of |g_j|),
    c = 1 if n = 0, else min(1, C / (n + e)),   applied g' = c g,   w' = w - lr g'.

This is the p-norm of one vector that holds every independent element once. The wrong ways beside it: `per_rank` (each
rank clips by the norm of what it holds) and `every_copy` (copies are counted as often as they are held).
`torch.nn.utils.clip_grad_norm_` (documentation and source, torch 2.13) treats the gradients as one concatenated vector
too, but divides by n + 1e-6, clamps the coefficient to 1 and multiplies always.

A non-finite value in any copy on any rank makes all ranks skip. Norms are taken of values divided by the largest one,
so that their squares cannot leave float64.

Shapes: `ranks[r][k].grad` has d_k elements; the answer's nested lists have the same shape, arrays inside are flat, copy
after copy, rank after rank. All numbers are plain (the parameters' and gradients' own units); norms are float64.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import accumulate, chain
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import (
    BeforeValidator,
    Field,
    GetPydanticSchema,
    PlainSerializer,
    StrictBool,
    WithJsonSchema,
    model_validator,
)

from app.contract import (
    MAX_CELLS,
    MAX_LISTED_CELLS,
    MAX_RANKS,
    InputError,
    NonFinite,
    NonNegative,
    Positive,
    RawNumber,
    Real,
    Reason,
    Rows,
    Table,
    blank_to_none,
    exact,
    extended,
    extended_rows_of,
    finite_or_name,
    number_schema,
    positive,
    raw_number_schema,
    rows_of,
)
from app.contract import Inputs as InputsBase
from app.contract import Query as QueryBase
from app.contract import Result as ResultBase

Floats = NDArray[np.float64]
Norm = float | NonFinite
Decision = Literal["update", "skip_all_ranks"]
SchemeName = Literal["global_owner", "per_rank", "every_copy"]

TORCH_EPS = 1e-6
_SMALLEST_NORMAL = float(np.finfo(np.float64).smallest_normal)

RawExtended = Annotated[
    int | float | str,
    GetPydanticSchema(lambda _source, _handler: raw_number_schema),
    WithJsonSchema({"anyOf": [number_schema(), {"enum": ["inf", "-inf", "nan"]}]}),
]
"""A gradient value as typed; `inf`, `-inf` and `nan` are allowed."""


def _norm_type(value: object) -> float:
    if isinstance(value, str) and value.strip().lower() in ("inf", "+inf"):
        return float("inf")
    return float(positive(value))


NormType = Annotated[
    float,
    Field(allow_inf_nan=True),
    BeforeValidator(_norm_type),
    PlainSerializer(finite_or_name, when_used="json"),
    WithJsonSchema({"anyOf": [number_schema(exclusiveMinimum=0), {"enum": ["inf"]}]}),
]
"""p of the p-norm: 1, 2, any p > 0, or `inf`."""


class GradientCopy(InputsBase):
    """What one rank holds of one gradient: the scaled values, and the parameters that belong to them.

    `expert` marks a gradient that exists only where its expert lives; the owner's mark decides.
    """

    id: str = Field(min_length=1, max_length=200)
    grad: list[RawExtended]
    owner: StrictBool
    param: list[RawNumber] | None = None
    expert: StrictBool = False


class Inputs(InputsBase):
    """The copies that every rank holds, and the clipping rule. A rank may hold none."""

    ranks: list[list[GradientCopy]] = Field(
        min_length=1,
        max_length=MAX_RANKS,
        examples=[
            [
                [{"id": "a", "grad": [24], "owner": True, "param": [1]}],
                [{"id": "b", "grad": [32], "owner": True, "param": [1]}],
            ]
        ],
    )
    max_norm: NonNegative
    loss_scale: Positive = Fraction(1)
    norm_type: NormType = 2.0
    eps: NonNegative = Fraction(0)
    lr: Real | None = None

    @model_validator(mode="after")
    def _owned_once(self) -> "Inputs":
        if sum(max(1, len(copy.grad)) for rank in self.ranks for copy in rank) > MAX_CELLS:
            en, zh = f"hold more than {MAX_CELLS:,} values", f"的值超过 {MAX_CELLS:,} 个"
            raise InputError(en, zh, field="ranks", code="too_long")
        owners: dict[str, tuple[int, int]] = {}
        for r, k, copy in self.placed():
            if copy.owner and copy.id in owners:
                en = f"makes rank {r} a second owner of “{copy.id}”; rank {owners[copy.id][0]} owns it already"
                zh = f"使 rank {r} 成为“{copy.id}”的第二个拥有者；rank {owners[copy.id][0]} 已拥有它"
                raise InputError(en, zh, field=("ranks", r, k, "owner"), code="two_owners")
            if copy.owner:
                owners[copy.id] = r, k
        self._check_copies(owners)
        return self

    def placed(self) -> Iterator[tuple[int, int, GradientCopy]]:
        """Every copy with its rank and its place there."""
        for r, rank in enumerate(self.ranks):
            for k, copy in enumerate(rank):
                yield r, k, copy

    def _check_copies(self, owners: dict[str, tuple[int, int]]) -> None:
        """Every copy has an owner of its length, its rank holds it once, and parameters fit the gradients."""
        held: set[tuple[int, str]] = set()
        with_param = any(copy.param is not None for _, _, copy in self.placed())
        for r, k, copy in self.placed():
            path, size, name = ("ranks", r, k), len(copy.grad), copy.id
            if name not in owners:
                en = f"leaves “{name}” of rank {r} without an owner: exactly one copy has owner true"
                zh = f"使 rank {r} 的“{name}”没有拥有者：恰有一个副本的 owner 为 true"
                raise InputError(en, zh, field=(*path, "owner"), code="no_owner")
            if (r, name) in held:
                en, zh = f"is a second copy of “{name}” on rank {r}", f"是 rank {r} 上“{name}”的第二个副本"
                raise InputError(en, zh, field=(*path, "id"), code="duplicate")
            held.add((r, name))
            home, place = owners[name]
            if size != len(self.ranks[home][place].grad):
                en = f"of rank {r} has another length than the owner's “{name}” on rank {home}"
                zh = f"（rank {r}）与拥有者 rank {home} 的“{name}”长度不同"
                raise InputError(en, zh, field=(*path, "grad"), code="shape_mismatch")
            if with_param and (copy.param is None or len(copy.param) != size):
                en = f"of “{name}” on rank {r} needs {size} values, one for each of grad (or give no param at all)"
                zh = f"（rank {r} 的“{name}”）需要 {size} 个值，与 grad 一一对应（或全都不给 param）"
                raise InputError(en, zh, field=(*path, "param"), code="shape_mismatch")


def _write_rows(rows: tuple[tuple[Fraction | float, ...], ...] | None) -> str | None:
    return None if rows is None else ";".join(",".join(str(value) for value in row) for row in rows)


def _rank_or_none(value: object) -> int | None:
    if value is None or (isinstance(value, str) and value.strip().lower() in ("", "none")):
        return None
    number = exact(value)
    if number.denominator != 1 or number < 0:
        raise InputError("must be a rank: 0, 1, …", "应是 rank 编号：0、1、……", code="rank_type")
    return number.numerator


GradientRows = Annotated[
    tuple[tuple[Annotated[float, Field(allow_inf_nan=True)], ...], ...],
    BeforeValidator(extended_rows_of),
    PlainSerializer(_write_rows, when_used="json"),
    WithJsonSchema({"type": "string", "examples": ["24;32", "3,4;inf"]}),
]
ReplicatedRow = Annotated[
    Rows | None,
    BeforeValidator(lambda value: None if blank_to_none(value) is None else rows_of(value)),
    PlainSerializer(_write_rows, when_used="json"),
    WithJsonSchema({"type": "string", "examples": ["96"]}),
]
RankOrNone = Annotated[
    int | None,
    BeforeValidator(_rank_or_none),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 0}, {"enum": ["", "none"]}]}),
]


class Query(QueryBase):
    """The panel: scaled gradients rank by rank, and a gradient that every rank holds and the first one owns."""

    gradients: GradientRows = Field(default="24;32", validate_default=True)
    replicated: ReplicatedRow = None
    loss_scale: Positive = Fraction(8)
    max_norm: NonNegative = Fraction(1)
    param: Real = Fraction(1)
    lr: Real = Fraction(1, 10)
    norm_type: NormType = 2.0
    eps: NonNegative = Fraction(0)
    scheme: SchemeName = "global_owner"
    overflow: RankOrNone = None

    @model_validator(mode="after")
    def _fits(self) -> "Query":
        count = len(self.gradients)
        if count > MAX_RANKS:
            en, zh = f"have more than {MAX_RANKS:,} rows (ranks)", f"超过 {MAX_RANKS:,} 行（rank）"
            raise InputError(en, zh, field="gradients", code="too_long")
        if self.replicated is not None and len(self.replicated) != 1:
            en, zh = "is one row: the same values on every rank", "只写一行：各 rank 上是相同的值"
            raise InputError(en, zh, field="replicated", code="too_long")
        copied = 0 if self.replicated is None else count * len(self.replicated[0])
        if sum(map(len, self.gradients)) + copied > MAX_CELLS:
            en, zh = f"hold more than {MAX_CELLS:,} values", f"的值超过 {MAX_CELLS:,} 个"
            raise InputError(en, zh, field="gradients", code="too_long")
        if self.overflow is not None and self.overflow >= count:
            en = f"names rank {self.overflow}, but the ranks are 0 to {count - 1}"
            zh = f"指向 rank {self.overflow}，而现有 rank 为 0 至 {count - 1}"
            raise InputError(en, zh, field="overflow", code="no_such_rank")
        return self

    def inputs(self) -> Inputs:
        """The body that these fields stand for: gradients a, b, … and, on every rank, `shared`."""
        ranks: list[list[dict[str, Any]]] = []
        for r, row in enumerate(self.gradients):
            values = [finite_or_name(value) for value in row]
            if r == self.overflow:
                values[0] = "inf"
            ranks.append([{"id": _letters(r), "grad": values, "owner": True}])
            if self.replicated is not None:
                shared = [float(value) for value in self.replicated[0]]
                ranks[-1].append({"id": "shared", "grad": shared, "owner": r == 0})
        for copy in (copy for rank in ranks for copy in rank):
            copy["param"] = [float(self.param)] * len(copy["grad"])
        names = ("max_norm", "loss_scale", "eps", "lr")
        rule: dict[str, Any] = {name: getattr(self, name) for name in names}
        return Inputs(ranks=ranks, norm_type=finite_or_name(self.norm_type), **rule)  # type: ignore[arg-type]


def _letters(index: int) -> str:
    """a, b, … z, aa, ab, …"""
    head, last = divmod(index, 26)
    return (_letters(head - 1) if head else "") + chr(ord("a") + last)


class NamedGradient(ResultBase):
    """The values of one copy, by the id of its gradient."""

    id: str
    grad: list[float]


class UnscaledGradient(ResultBase):
    """As NamedGradient, before the check: `inf` and `nan` are possible."""

    id: str
    grad: list[Norm]


class NamedParam(ResultBase):
    """The parameters of one copy after the step."""

    id: str
    param: list[float]


class SchemeResult(ResultBase):
    """What one scheme does. For `per_rank`, `norm` and `coefficient` have one entry a rank.

    `clipped_norm` is the norm of the independent gradient that results (owners' copies, each as its rank applies it).
    When all ranks skip, coefficients and `applied` are null and `param_after` is the parameter unchanged.
    """

    defined: bool
    reason: Reason | None
    norm: Norm | list[Norm]
    coefficient: float | list[float | None] | None
    clipped_norm: float | None
    applied: list[list[NamedGradient]] | None
    param_after: list[list[NamedParam]] | None


class ClippedBeforeUnscale(ResultBase):
    """Clipping by mistake before the division by the loss scale: norm and coefficient of the scaled gradient."""

    norm: Norm
    coefficient: float | None
    norm_after_unscale: float | None


class Square(ResultBase):
    """What one copy adds to the norm: `square` = sum of its |g|^p (null for p = inf, and beyond float64).

    `share` is its part of the sum over every copy; for p = inf, 1 where the copy holds the maximum, else 0.
    """

    rank: int
    id: str
    norm: Norm
    square: float | None
    share: float | None
    counted_by_owner: bool
    counted_every_copy: bool


class Result(ResultBase):
    """The update by global norm, and what other ways of counting would find.

    Norms of non-finite gradients are the strings `inf` or `nan` (nan prevails), their coefficients null. Lists with
    one entry a copy or an element are null above MAX_LISTED_CELLS cells, `applied` also when all ranks skip,
    `param_after` where `param` or `lr` was not given.
    """

    decision: Decision
    defined: bool
    reason: Reason | None
    global_norm: Norm
    coefficient: float | None
    clipped_norm: float | None
    local_norms: list[Norm]
    local_coefficients: list[float | None]
    norm_if_every_copy_counted: Norm
    coefficient_if_every_copy_counted: float | None
    norm_if_local_norms_averaged: Norm
    max_of_local_norms: Norm
    sum_of_local_norms: Norm
    norm_after_per_rank_clipping: float | None
    torch_clip_grad_norm_coefficient: float | None
    norm_if_experts_omitted: Norm | None = Field(default=None, exclude_if=lambda value: value is None)
    if_clipped_before_unscale: ClippedBeforeUnscale
    per_group_coefficients: dict[str, float | None] | None
    copies_agree: bool
    unscaled: list[list[UnscaledGradient]] | None
    applied: list[list[NamedGradient]] | None
    param_after: list[list[NamedParam]] | None
    squares: list[Square] | None
    schemes: dict[SchemeName, SchemeResult]

    def tables(self) -> list[Table]:
        """Three tables: the quantities, the ranks, and (where listed) what each copy adds to the norm."""
        quantities = [(name, value) for name, value in self if isinstance(value, bool | float | str) or value is None]
        ranks = [(r, *pair) for r, pair in enumerate(zip(self.local_norms, self.local_coefficients, strict=True))]
        tables = [
            Table(header=("quantity", "value"), rows=list(quantities)),
            Table(header=("rank", "local_norm", "local_coefficient"), rows=list(ranks)),
        ]
        if self.squares is not None:
            rows = [tuple(value for _, value in square) for square in self.squares]
            tables.append(Table(header=tuple(Square.model_fields), rows=rows))
        return tables


class Row(ResultBase):
    """One element of one copy, from the scaled value to the parameter after the step, by the selected scheme."""

    rank: int
    id: str
    element: int
    scaled: Norm
    gradient: Norm
    owner: bool
    owner_rank: int
    coefficient: float | None
    applied: float | None
    param: float
    param_after: float
    reason: Reason | None


class View(Result):
    """What the panel shows: the selected scheme, and one row for each element of each copy."""

    selected: SchemeName
    current: SchemeResult
    rows: list[Row] | None

    def tables(self) -> list[Table]:
        if self.rows is None:
            return super().tables()
        rows = [tuple(value for _, value in row) for row in self.rows]
        return [Table(header=tuple(Row.model_fields), rows=rows), *super().tables()]


@dataclass(frozen=True, eq=False)
class _Copies:
    """All copies laid end to end. `gradient` and `param` have one entry an element, the others one a copy.

    `origin` is the index of the owner's copy of the same id.
    """

    names: list[str]
    rank: NDArray[np.int64]
    size: NDArray[np.int64]
    owner: NDArray[np.bool_]
    expert: NDArray[np.bool_]
    origin: NDArray[np.int64]
    ranks: int
    scaled: Floats
    param: Floats | None

    @classmethod
    def of(cls, inputs: Inputs) -> "_Copies":
        placed = list(inputs.placed())
        copies = [copy for _, _, copy in placed]
        owners = {copy.id: index for index, copy in enumerate(copies) if copy.owner}
        param = None
        if copies and copies[0].param is not None:
            param = _floats(
                [copy.param or [] for copy in copies], exact, [("ranks", r, k, "param") for r, k, _ in placed]
            )
        return cls(
            names=[copy.id for copy in copies],
            rank=np.array([r for r, _, _ in placed], dtype=np.int64),
            size=np.array([len(copy.grad) for copy in copies], dtype=np.int64),
            owner=np.array([copy.owner for copy in copies], dtype=np.bool_),
            expert=np.array([copies[owners[copy.id]].expert for copy in copies], dtype=np.bool_),
            origin=np.array([owners[copy.id] for copy in copies], dtype=np.int64),
            ranks=len(inputs.ranks),
            scaled=_floats([copy.grad for copy in copies], extended, [("ranks", r, k, "grad") for r, k, _ in placed]),
            param=param,
        )

    @cached_property
    def element_rank(self) -> NDArray[np.int64]:
        return np.repeat(self.rank, self.size)

    @cached_property
    def owned(self) -> NDArray[np.bool_]:
        return np.repeat(self.owner, self.size)

    @property
    def rank_size(self) -> NDArray[np.int64]:
        return np.bincount(self.rank, weights=self.size, minlength=self.ranks).astype(np.int64)

    @property
    def listed(self) -> bool:
        return max(len(self.scaled), len(self.names)) <= MAX_LISTED_CELLS

    def agree(self) -> bool:
        """Whether every copy equals its owner's."""
        start = np.cumsum(self.size) - self.size
        owners_element = np.arange(len(self.scaled)) + np.repeat(start[self.origin] - start, self.size)
        return np.array_equal(self.scaled, self.scaled[owners_element], equal_nan=True)

    def nested(self, values: Floats) -> Iterator[list[tuple[str, list[float]]]]:
        """For every rank, the (id, values) of its copies."""
        flat, ends = values.tolist(), np.cumsum(self.size).tolist()
        pairs = [(name, flat[a:b]) for name, a, b in zip(self.names, [0, *ends], ends, strict=False)]
        cuts = np.cumsum(np.bincount(self.rank, minlength=self.ranks)).tolist()
        return (pairs[a:b] for a, b in zip([0, *cuts], cuts, strict=False))


def _floats(
    lists: list[list[int | float | str]],
    read: Callable[[object], Fraction | float],
    paths: Sequence[tuple[str | int, ...]],
) -> Floats:
    """All lists end to end as float64; InputError names the list's path and the entry's place in it."""
    flat = list(chain.from_iterable(lists))
    if str not in set(map(type, flat)):
        try:
            return np.array(flat, dtype=np.float64)
        except OverflowError:
            pass  # an integer beyond float64: the reading below names its place
    numbers: list[float] = []
    try:
        numbers.extend(value if type(value) is float else float(read(value)) for value in flat)
    except InputError as error:
        ends = list(accumulate(map(len, lists), initial=0))
        index = bisect_right(ends, len(numbers)) - 1
        raise InputError(
            error.en, error.zh, field=(*paths[index], len(numbers) - ends[index]), code=error.code
        ) from None
    return np.array(numbers, dtype=np.float64)


@dataclass(frozen=True)
class _Rule:
    """The clipping rule: p, threshold C and e, as in the module's docstring."""

    norm_type: float
    max_norm: float
    eps: float

    def norms(self, values: Floats, sizes: NDArray[np.int64]) -> Floats:
        """The p-norm of each of the segments that `values` is made of; a non-finite one for non-finite values."""
        norms = np.zeros(len(sizes))
        filled = sizes > 0
        if not filled.any():
            return norms
        starts = (np.cumsum(sizes) - sizes)[filled]
        magnitudes = np.abs(values)
        peaks = np.maximum.reduceat(magnitudes, starts)
        if self.norm_type == np.inf:
            norms[filled] = peaks
            return norms
        # A power of two divides without rounding, so 3 and 4 give exactly 5; other p need the maximum itself.
        units = np.ldexp(1.0, np.frexp(peaks)[1] - 1) if self.norm_type in (1, 2) else peaks
        units = np.where(peaks > 0, units, 1.0)
        powers = (magnitudes / np.repeat(units, sizes[filled])) ** self.norm_type
        roots = units * np.add.reduceat(powers, starts) ** (1 / self.norm_type)
        finite = np.isfinite(peaks)
        if not np.isfinite(roots[finite]).all():
            raise InputError(
                "have a norm beyond float64", "的范数超出 float64 的范围", field="ranks", code="number_range"
            )
        norms[filled] = np.where(finite, roots, peaks)
        return norms

    def norm(self, values: Floats) -> float:
        return float(self.norms(values, np.array([len(values)]))[0])

    def coefficients(self, norms: Floats) -> Floats:
        """c for each norm; NaN where the norm is not finite."""
        whole = norms + self.eps
        if not np.isfinite(whole[np.isfinite(norms)]).all():
            en, zh = "makes norm + eps leave float64", "使范数 + eps 超出 float64 的范围"
            raise InputError(en, zh, field="eps", code="number_range")
        clipped = np.where((norms == 0) | (whole <= self.max_norm), 1.0, self.max_norm / whole)
        return np.where(np.isfinite(norms), clipped, np.nan)

    def coefficient_list(self, norms: Floats) -> list[float | None]:
        return [None if np.isnan(value) else value for value in self.coefficients(norms).tolist()]

    def coefficient(self, norm: float) -> float | None:
        return self.coefficient_list(np.array([norm]))[0]

    def applied(self, gradient: Floats, norms: Floats) -> Floats:
        """c·g, where `norms` gives for each element the norm that it is clipped by."""
        coefficients = self.coefficients(norms)
        # A coefficient below the normal range has lost digits that the product need not lose.
        by_ratio = gradient / (norms + self.eps) * self.max_norm
        return np.where(coefficients >= _SMALLEST_NORMAL, gradient * coefficients, by_ratio)


def _unscaled(scaled: Floats, loss_scale: float) -> Floats:
    gradient = scaled / loss_scale
    if not np.isfinite(gradient[np.isfinite(scaled)]).all():
        en, zh = "takes the unscaled gradient out of float64", "使还原后的梯度超出 float64 的范围"
        raise InputError(en, zh, field="loss_scale", code="number_range")
    return gradient


def _or_none(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def _names(values: Floats) -> list[Norm]:
    return [finite_or_name(value) for value in values.tolist()]


def _step(copies: _Copies, applied: Floats | None, lr: Fraction | None) -> list[list[NamedParam]] | None:
    """w - lr·applied for every copy; w itself when nothing is applied; None where something was not given."""
    if copies.param is None or lr is None or not copies.listed:
        return None
    after = copies.param if applied is None else copies.param - float(lr) * applied
    if not np.isfinite(after).all():
        en, zh = "takes a parameter out of float64", "使参数超出 float64 的范围"
        raise InputError(en, zh, field="lr", code="number_range")
    return [[NamedParam(id=name, param=param) for name, param in rank] for rank in copies.nested(after)]


def _scheme(copies: _Copies, rule: _Rule, gradient: Floats, norm: float | Floats, lr: Fraction | None) -> SchemeResult:
    """Clip by one norm, or what rank r holds by `norm[r]`. Nothing is applied unless every value is finite."""
    finite = bool(np.isfinite(gradient).all())
    applied = clipped_norm = None
    coefficient: float | list[float | None] | None = None if isinstance(norm, float) else [None] * copies.ranks
    if finite:
        coefficient = rule.coefficient(norm) if isinstance(norm, float) else rule.coefficient_list(norm)
        applied = rule.applied(gradient, np.broadcast_to(norm, copies.ranks)[copies.element_rank])
        clipped_norm = rule.norm(applied[copies.owned])
    return SchemeResult(
        defined=finite,
        reason=None if finite else "non_finite",
        norm=finite_or_name(norm) if isinstance(norm, float) else _names(norm),
        coefficient=coefficient,
        clipped_norm=clipped_norm,
        applied=None if applied is None or not copies.listed else _gradients(copies, applied),
        param_after=_step(copies, applied, lr),
    )


def _gradients(copies: _Copies, values: Floats) -> list[list[NamedGradient]]:
    return [[NamedGradient(id=name, grad=grad) for name, grad in rank] for rank in copies.nested(values)]


def _squares(copies: _Copies, rule: _Rule, norms: Floats, every: float) -> list[Square]:
    """One entry a copy, of the copies' own norms and the norm over every copy."""
    p = rule.norm_type
    squares = norms**p if p != np.inf else np.full(len(norms), np.nan)
    lost = ~np.isfinite(squares) | ((squares == 0) & (norms != 0))
    squares = np.where(lost, np.nan, squares)
    shares = (norms / every) ** p
    rows = zip(copies.rank.tolist(), copies.names, norms, squares, shares, copies.owner.tolist(), strict=True)
    return [
        Square(
            rank=rank,
            id=name,
            norm=finite_or_name(float(norm)),
            square=_or_none(square),
            share=_or_none(share) if np.isfinite(every) else None,
            counted_by_owner=owner,
            counted_every_copy=True,
        )
        for rank, name, norm, square, share, owner in rows
    ]


def _sum_of(norms: Floats) -> float:
    total = float(norms.sum())
    if np.isfinite(norms).all() and not np.isfinite(total):
        en, zh = "have local norms whose sum is beyond float64", "的各卡范数之和超出 float64 的范围"
        raise InputError(en, zh, field="ranks", code="number_range")
    return total


def _before_unscale(rule: _Rule, scaled: Floats, loss_scale: float) -> ClippedBeforeUnscale:
    norm = rule.norm(scaled)
    clipped = float(rule.applied(np.array([norm]), np.array([norm]))[0])
    return ClippedBeforeUnscale(
        norm=finite_or_name(norm),
        coefficient=rule.coefficient(norm),
        norm_after_unscale=clipped / loss_scale if np.isfinite(norm) else None,
    )


@np.errstate(all="ignore")
def compute(inputs: Inputs) -> Result:
    """Clip by the global norm, and find what the other ways of counting would do.

    InputError where the body does not hold together, or where a result would leave float64.
    """
    copies = _Copies.of(inputs)
    rule = _Rule(inputs.norm_type, float(inputs.max_norm), float(inputs.eps))
    gradient = _unscaled(copies.scaled, float(inputs.loss_scale))
    finite = bool(np.isfinite(gradient).all())
    every = rule.norm(gradient)
    global_norm = rule.norm(gradient[copies.owned]) if finite else every
    local = rule.norms(gradient, copies.rank_size)
    by_copy = rule.norms(gradient, copies.size)
    owner = _scheme(copies, rule, gradient, global_norm, inputs.lr)
    per_rank = _scheme(copies, rule, gradient, local, inputs.lr)
    groups = zip(copies.names, rule.coefficient_list(by_copy), copies.owner.tolist(), strict=True)
    without_experts = copies.owned & ~np.repeat(copies.expert, copies.size)
    return Result(
        decision="update" if finite else "skip_all_ranks",
        defined=finite,
        reason=owner.reason,
        global_norm=finite_or_name(global_norm),
        coefficient=rule.coefficient(global_norm),
        clipped_norm=owner.clipped_norm,
        local_norms=_names(local),
        local_coefficients=rule.coefficient_list(local),
        norm_if_every_copy_counted=finite_or_name(every),
        coefficient_if_every_copy_counted=rule.coefficient(every),
        norm_if_local_norms_averaged=finite_or_name(_sum_of(local) / copies.ranks),
        max_of_local_norms=finite_or_name(float(local.max())),
        sum_of_local_norms=finite_or_name(_sum_of(local)),
        norm_after_per_rank_clipping=per_rank.clipped_norm,
        torch_clip_grad_norm_coefficient=min(1.0, rule.max_norm / (global_norm + TORCH_EPS)) if finite else None,
        norm_if_experts_omitted=finite_or_name(rule.norm(gradient[without_experts])) if copies.expert.any() else None,
        if_clipped_before_unscale=_before_unscale(
            rule, copies.scaled[copies.owned] if finite else copies.scaled, float(inputs.loss_scale)
        ),
        per_group_coefficients={name: c for name, c, owns in groups if owns} if copies.listed else None,
        copies_agree=copies.agree(),
        unscaled=_unscaled_lists(copies, gradient) if copies.listed else None,
        applied=owner.applied,
        param_after=owner.param_after,
        squares=_squares(copies, rule, by_copy, every) if copies.listed else None,
        schemes={
            "global_owner": owner,
            "per_rank": per_rank,
            "every_copy": _scheme(copies, rule, gradient, every, inputs.lr),
        },
    )


def _unscaled_lists(copies: _Copies, gradient: Floats) -> list[list[UnscaledGradient]]:
    return [
        [UnscaledGradient(id=name, grad=[finite_or_name(value) for value in grad]) for name, grad in rank]
        for rank in copies.nested(gradient)
    ]


def panel(query: Query) -> View:
    """The panel's state, through the same `compute`."""
    inputs = query.inputs()
    try:
        result = compute(inputs)
    except InputError as error:
        # In the panel the gradients are one field, whatever their place in the body.
        field = "gradients" if error.field[:1] == ("ranks",) else error.field
        raise InputError(error.en, error.zh, field=field, code=error.code) from None
    current = result.schemes[query.scheme]
    rows = None if result.unscaled is None else list(_rows(inputs, result.unscaled, current))
    return View(**dict(result), selected=query.scheme, current=current, rows=rows)


def _rows(inputs: Inputs, unscaled: list[list[UnscaledGradient]], scheme: SchemeResult) -> Iterator[Row]:
    owners = {copy.id: r for r, _, copy in inputs.placed() if copy.owner}
    for r, k, copy in inputs.placed():
        assert copy.param is not None
        assert scheme.param_after is not None
        coefficient = scheme.coefficient[r] if isinstance(scheme.coefficient, list) else scheme.coefficient
        for i, scaled in enumerate(copy.grad):
            yield Row(
                rank=r,
                id=copy.id,
                element=i,
                scaled=finite_or_name(extended(scaled)),
                gradient=unscaled[r][k].grad[i],
                owner=copy.owner,
                owner_rank=owners[copy.id],
                coefficient=coefficient,
                applied=None if scheme.applied is None else scheme.applied[r][k].grad[i],
                param=float(exact(copy.param[i])),
                param_after=scheme.param_after[r][k].param[i],
                reason=scheme.reason,
            )
