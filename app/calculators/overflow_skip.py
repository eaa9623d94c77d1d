"""One decision for all ranks when a gradient overflows, beside ranks that decide alone.

Words and symbols: rank r of P holds the scaled gradient S_r·g_r (`scaled_grads[r]`) under the loss scale S_r (`scale`),
and w_r (`params[r]`). With `reduce` the scaled gradients are first summed or averaged over the ranks (data parallel:
every rank then holds the same); without it the ranks hold shards. A rank's flag says whether what it holds then is
non-finite. An unflagged step is plain SGD, w' = w - lr·(scaled / S_r).

Coordinated: the flags are combined, any flag makes all ranks skip and all scales back off. Uncoordinated: each rank
follows its own flag. The scaler's rule is that of `torch.amp.GradScaler` (documentation; defaults of torch 2.13):
on a skip S·0.5 and the growth tracker 0; on a step the tracker goes up by one, and where it then equals
`growth_interval`, S·2 and the tracker 0. A tracker that is already past the interval therefore never grows the scale.
A static scale has no such rule: neither scale nor tracker changes.

Shapes: all rows of one rank have the same length d_r (without `reduce` d_r may differ); plain numbers, float64 out.
Not modelled: the optimizer's own state, and the float32 in which GradScaler keeps its scale.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate, chain, pairwise
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field, GetPydanticSchema, PlainSerializer, StrictBool, WithJsonSchema

from app.contract import (
    MAX_CELLS,
    MAX_LISTED_CELLS,
    MAX_RANKS,
    InputError,
    NonFinite,
    RawNumber,
    Real,
    Reason,
    Rows,
    Table,
    exact,
    extended,
    extended_rows_of,
    finite_or_name,
    number_schema,
    positive,
    raw_number_schema,
    rows_of,
    split_rows,
)
from app.contract import Inputs as InputsBase
from app.contract import Query as QueryBase
from app.contract import Result as ResultBase

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Value = float | NonFinite
Decision = Literal["step", "skip"]

GROWTH_FACTOR = 2.0
BACKOFF_FACTOR = 0.5
MAX_STEPS = 2**31 - 1
"""The largest growth interval and tracker."""

RawExtended = Annotated[
    int | float | str,
    GetPydanticSchema(lambda _source, _handler: raw_number_schema),
    WithJsonSchema({"anyOf": [number_schema(), {"enum": ["inf", "-inf", "nan"]}]}),
]
"""A gradient value as typed; `inf`, `-inf` and `nan` are allowed."""


def _whole(value: object) -> int:
    number = exact(value)
    if number.denominator != 1:
        raise InputError("must be a whole number", "应是整数", code="int_from_float")
    return number.numerator


def _scales(value: object) -> tuple[Fraction, ...]:
    """One scale, or a list with one for each rank."""
    if not isinstance(value, list | tuple):
        return (positive(value),)
    scales = []
    try:
        for scale in value:
            scales.append(positive(scale))
    except InputError as error:
        place_en, place_zh = f"value {len(scales) + 1} ", f"第 {len(scales) + 1} 个值"
        raise InputError(place_en + error.en, place_zh + error.zh, code=error.code) from None
    return tuple(scales)


def _scales_in_text(value: object) -> tuple[Fraction, ...]:
    """`65536`, or `8;4` or `8,4`."""
    cells = [cell for row in split_rows(value) for cell in row] if isinstance(value, str) else [value]
    return _scales(cells[0] if len(cells) == 1 else cells)


def _write_rows(rows: tuple[tuple[Fraction | float, ...], ...]) -> str:
    return ";".join(",".join(str(value) for value in row) for row in rows)


_ONE_SCALE = number_schema(exclusiveMinimum=0)
Scales = Annotated[
    tuple[Fraction, ...],
    BeforeValidator(_scales),
    WithJsonSchema({"anyOf": [_ONE_SCALE, {"type": "array", "items": _ONE_SCALE, "maxItems": MAX_RANKS}]}),
]
ScaleText = Annotated[
    tuple[Fraction, ...],
    BeforeValidator(_scales_in_text),
    PlainSerializer(lambda scales: ";".join(map(str, scales)), when_used="json"),
    WithJsonSchema({"anyOf": [_ONE_SCALE, {"type": "string", "examples": ["65536", "8;4"]}]}),
]
GradientRows = Annotated[
    tuple[tuple[Annotated[float, Field(allow_inf_nan=True)], ...], ...],
    BeforeValidator(extended_rows_of),
    PlainSerializer(_write_rows, when_used="json"),
    WithJsonSchema({"type": "string", "examples": ["inf;65536"]}),
]
ParamRows = Annotated[
    Rows,
    BeforeValidator(rows_of),
    PlainSerializer(_write_rows, when_used="json"),
    WithJsonSchema({"type": "string", "examples": ["1;1"]}),
]


class Inputs(InputsBase):
    """What every rank holds after the backward pass, and the scaler's state.

    `reduce` needs the same number of values on every rank. `growth_tracker` counts the finite steps since the last
    change of the scale.
    """

    scaled_grads: list[list[RawExtended]] = Field(min_length=1, max_length=MAX_RANKS, examples=[[["inf"], [65536]]])
    params: list[list[RawNumber]] = Field(max_length=MAX_RANKS, examples=[[[1], [1]]])
    scale: Scales
    lr: Real
    reduce: Literal["mean", "sum"] | None = None
    growth_interval: Annotated[int, Field(ge=1, le=MAX_STEPS), BeforeValidator(_whole)] = 2000
    growth_tracker: Annotated[int, Field(ge=0, le=MAX_STEPS), BeforeValidator(_whole)] = 0
    static_scale: StrictBool = False


class Query(QueryBase):
    """The panel: scaled gradients, scale and parameters, rank by rank."""

    scaled_grads: GradientRows = Field(default="inf;65536", validate_default=True)
    scale: ScaleText = Field(default="65536", validate_default=True)
    params: ParamRows = Field(default="1;1", validate_default=True)
    lr: Real = Fraction(1, 10)

    def inputs(self) -> Inputs:
        """The body that these fields stand for."""
        if len(self.scaled_grads) > MAX_RANKS:
            raise _too_many("scaled_grads", f"{MAX_RANKS:,} rows (ranks)", f"{MAX_RANKS:,} 行（rank）")
        if len(self.params) > MAX_RANKS:
            raise _too_many("params", f"{MAX_RANKS:,} rows (ranks)", f"{MAX_RANKS:,} 行（rank）")
        return Inputs(
            scaled_grads=[[finite_or_name(value) for value in row] for row in self.scaled_grads],
            params=[[float(value) for value in row] for row in self.params],
            scale=self.scale,
            lr=self.lr,
        )


class Coordinated(ResultBase):
    """All ranks follow the combined flag. `params` is null above MAX_LISTED_CELLS cells."""

    decision: Decision
    params: list[list[float]] | None
    next_scale: list[float]
    next_growth_tracker: int
    successful_updates: int


class Uncoordinated(ResultBase):
    """Every rank follows its own flag. `params` is null above MAX_LISTED_CELLS cells."""

    decision_per_rank: list[Decision]
    params: list[list[float]] | None
    next_scale: list[float]
    next_growth_tracker: list[int]
    successful_updates: list[int]


class Result(ResultBase):
    """Both protocols side by side; `decision` is the coordinated one, `reason` says why it is `skip`.

    `replicas_equal_after_…` compare the ranks' parameters after the step; they are null where the ranks hold shards (no
    `reduce`) or did not begin equal. `scales_agree…` say whether all ranks have one loss scale, before the step and
    after each protocol.
    """

    decision: Decision
    reason: Reason | None
    local_nonfinite_before_reduction: list[bool]
    nonfinite_after_reduction: list[bool]
    coordinated: Coordinated
    uncoordinated: Uncoordinated
    ranks_take_same_decision_if_uncoordinated: bool
    scale: list[float]
    scales_agree: bool
    scales_agree_after_coordinated: bool
    scales_agree_after_uncoordinated: bool
    replicas_equal_after_coordinated: bool | None
    replicas_equal_after_uncoordinated: bool | None

    def tables(self) -> list[Table]:
        """One row a rank."""
        header = (
            "rank",
            "nonfinite_before_reduction",
            "nonfinite_after_reduction",
            "scale",
            "decision_coordinated",
            "scale_next_coordinated",
            "growth_tracker_coordinated",
            "decision_alone",
            "scale_next_alone",
            "growth_tracker_alone",
        )
        alone = self.uncoordinated
        columns = zip(
            self.local_nonfinite_before_reduction,
            self.nonfinite_after_reduction,
            self.scale,
            self.coordinated.next_scale,
            alone.decision_per_rank,
            alone.next_scale,
            alone.next_growth_tracker,
            strict=True,
        )
        tracker = self.coordinated.next_growth_tracker
        rows: list[tuple[Any, ...]] = [
            (r, before, after, scale, self.decision, together, tracker, *own)
            for r, (before, after, scale, together, *own) in enumerate(columns)
        ]
        return [Table(header=header, rows=rows)]


class Row(ResultBase):
    """One element of one rank: what it holds, with the scale and without, and what both protocols do with it."""

    rank: int
    element: int
    scaled: Value
    unscaled: Value
    nonfinite: bool
    scale: float
    param: float
    decision_coordinated: Decision
    param_coordinated: float
    scale_next_coordinated: float
    decision_alone: Decision
    param_alone: float
    scale_next_alone: float


class View(Result):
    """What the panel shows: one row for each element of each rank. `nonfinite` in a row is the rank's flag."""

    rows: list[Row] | None

    def tables(self) -> list[Table]:
        if self.rows is None:
            return super().tables()
        rows = [tuple(value for _, value in row) for row in self.rows]
        return [Table(header=tuple(Row.model_fields), rows=rows), *super().tables()]


@dataclass(frozen=True, eq=False)
class _Ranks:
    """What all ranks hold, laid end to end: `held` (after the reduction), `unscaled` and `param` have one entry an
    element, `scale` and the flags one a rank."""

    size: NDArray[np.int64]
    held: Floats
    unscaled: Floats
    param: Floats
    scale: Floats
    before: Flags
    after: Flags

    @classmethod
    def of(cls, inputs: Inputs) -> "_Ranks":
        _check_shapes(inputs)
        size = np.array([len(row) for row in inputs.scaled_grads], dtype=np.int64)
        given = _floats(inputs.scaled_grads, extended, "scaled_grads")
        held = given if inputs.reduce is None else _reduced(given.reshape(len(size), -1), inputs.reduce)
        scale = np.broadcast_to(np.array([float(value) for value in inputs.scale]), len(size))
        unscaled = held / np.repeat(scale, size)
        finite = np.isfinite(held)
        if not np.isfinite(unscaled[finite]).all():
            raise _beyond("scale", "takes an unscaled gradient", "使还原后的梯度")
        return cls(
            size=size,
            held=held,
            unscaled=unscaled,
            param=_floats(inputs.params, exact, "params"),
            scale=scale,
            before=_any_by_rank(~np.isfinite(given), size),
            after=_any_by_rank(~finite, size),
        )

    def step(self, flags: Flags, lr: float) -> Floats:
        """The parameters after SGD on the ranks without a flag."""
        stepping = np.repeat(~flags, self.size)
        after = np.where(stepping, self.param - lr * self.unscaled, self.param)
        if not np.isfinite(after).all():
            raise _beyond("lr", "takes a parameter", "使参数")
        return after

    def nested(self, values: Floats) -> list[list[float]] | None:
        if max(len(values), len(self.size)) > MAX_LISTED_CELLS:
            return None
        flat = values.tolist()
        return [flat[a:b] for a, b in pairwise([0, *np.cumsum(self.size).tolist()])]

    def equal(self, values: Floats) -> bool:
        """Whether all ranks hold the same values; for ranks of one length."""
        rows = values.reshape(len(self.size), -1)
        return bool((rows == rows[0]).all())


def _too_many(field: str, limit_en: str, limit_zh: str) -> InputError:
    return InputError(f"have more than {limit_en}", f"超过 {limit_zh}", field=field, code="too_long")


def _beyond(field: str, en: str, zh: str) -> InputError:
    return InputError(f"{en} out of float64", f"{zh}超出 float64 的范围", field=field, code="number_range")


def _check_shapes(inputs: Inputs) -> None:
    """One scale, or one for each rank; parameters like gradients; a rectangle where ranks are reduced."""
    sizes, count = [len(row) for row in inputs.scaled_grads], len(inputs.scaled_grads)
    if sum(sizes) > MAX_CELLS:
        raise _too_many("scaled_grads", f"{MAX_CELLS:,} values", f"{MAX_CELLS:,} 个值")
    if len(inputs.scale) not in (1, count):
        en = f"has {len(inputs.scale)} values: give one, or one for each of the {count} ranks"
        zh = f"有 {len(inputs.scale)} 个值：应为一个，或 {count} 个 rank 各一个"
        raise InputError(en, zh, field="scale", code="shape_mismatch")
    if len(inputs.params) != count:
        en = f"have {len(inputs.params)} rows, but scaled_grads {count}: one for each rank"
        zh = f"有 {len(inputs.params)} 行，而 scaled_grads 有 {count} 行：每个 rank 一行"
        raise InputError(en, zh, field="params", code="shape_mismatch")
    for r, (row, size) in enumerate(zip(inputs.params, sizes, strict=True)):
        if len(row) != size:
            en = f"of rank {r} have {len(row)} values, but its scaled_grads {size}"
            zh = f"在 rank {r} 有 {len(row)} 个值，而它的 scaled_grads 有 {size} 个"
            raise InputError(en, zh, field=("params", r), code="shape_mismatch")
        if inputs.reduce is not None and size != sizes[0]:
            en = f"of rank {r} have {size} values, rank 0 has {sizes[0]}: a reduction needs as many on every rank"
            zh = f"在 rank {r} 有 {size} 个值，rank 0 有 {sizes[0]} 个：归约要求各 rank 个数相同"
            raise InputError(en, zh, field=("scaled_grads", r), code="shape_mismatch")


def _reduced(rows: Floats, operation: Literal["mean", "sum"]) -> Floats:
    """What every rank holds after the reduction over ranks, laid end to end."""
    total = rows.sum(axis=0)
    if not np.isfinite(total[np.isfinite(rows).all(axis=0)]).all():
        raise _beyond("scaled_grads", "have a sum over ranks that goes", "在各 rank 上的和")
    return np.tile(total / len(rows) if operation == "mean" else total, len(rows))


def _any_by_rank(flags: Flags, size: NDArray[np.int64]) -> Flags:
    ranks = np.repeat(np.arange(len(size)), size)
    return np.bincount(ranks[flags], minlength=len(size)) > 0


def _floats(lists: list[list[int | float | str]], read: Callable[[object], Fraction | float], field: str) -> Floats:
    """All lists end to end as float64; InputError names the rank and the entry's place in it."""
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
            error.en, error.zh, field=(field, index, len(numbers) - ends[index]), code=error.code
        ) from None
    return np.array(numbers, dtype=np.float64)


@dataclass(frozen=True)
class _Scaler:
    """The scaler's rule, applied on each rank by the flag that it follows."""

    tracker: int
    interval: int
    static: bool

    def update(self, scale: Floats, flags: Flags) -> tuple[list[float], list[int]]:
        """The next scale and growth tracker of every rank."""
        if self.static:
            return scale.tolist(), [self.tracker] * len(scale)
        grown = self.tracker + 1 == self.interval
        factors = np.where(flags, BACKOFF_FACTOR, GROWTH_FACTOR if grown else 1.0)
        after = scale * factors
        if not np.isfinite(after).all() or (after == 0).any():
            raise _beyond("scale", "would grow or back off", "增长或回退后")
        stepped = 0 if grown else self.tracker + 1
        return after.tolist(), np.where(flags, 0, stepped).tolist()


def _decisions(flags: Flags) -> list[Decision]:
    return ["skip" if flag else "step" for flag in flags.tolist()]


@np.errstate(all="ignore")
def compute(inputs: Inputs) -> Result:
    """Both protocols on the same gradients; InputError where the body does not hold together or leaves float64."""
    return _evaluate(inputs)[0]


def _evaluate(inputs: Inputs) -> tuple[Result, _Ranks]:
    ranks = _Ranks.of(inputs)
    scaler = _Scaler(inputs.growth_tracker, inputs.growth_interval, inputs.static_scale)
    lr, alone = float(inputs.lr), ranks.after
    together = np.full(len(alone), alone.any())
    scale_together, tracker_together = scaler.update(ranks.scale, together)
    scale_alone, tracker_alone = scaler.update(ranks.scale, alone)
    param_together, param_alone = ranks.step(together, lr), ranks.step(alone, lr)
    began_equal = inputs.reduce is not None and ranks.equal(ranks.param)
    decision: Decision = "skip" if alone.any() else "step"
    result = Result(
        decision=decision,
        reason="non_finite" if alone.any() else None,
        local_nonfinite_before_reduction=ranks.before.tolist(),
        nonfinite_after_reduction=alone.tolist(),
        coordinated=Coordinated(
            decision=decision,
            params=ranks.nested(param_together),
            next_scale=scale_together,
            next_growth_tracker=tracker_together[0],
            successful_updates=int(decision == "step"),
        ),
        uncoordinated=Uncoordinated(
            decision_per_rank=_decisions(alone),
            params=ranks.nested(param_alone),
            next_scale=scale_alone,
            next_growth_tracker=tracker_alone,
            successful_updates=(~alone).astype(int).tolist(),
        ),
        ranks_take_same_decision_if_uncoordinated=len(set(alone.tolist())) == 1,
        scale=ranks.scale.tolist(),
        scales_agree=len(set(ranks.scale.tolist())) == 1,
        scales_agree_after_coordinated=len(set(scale_together)) == 1,
        scales_agree_after_uncoordinated=len(set(scale_alone)) == 1,
        replicas_equal_after_coordinated=ranks.equal(param_together) if began_equal else None,
        replicas_equal_after_uncoordinated=ranks.equal(param_alone) if began_equal else None,
    )
    return result, ranks


@np.errstate(all="ignore")
def panel(query: Query) -> View:
    """The panel's state: the answer, element by element."""
    result, ranks = _evaluate(query.inputs())
    return View(**dict(result), rows=list(_rows(result, ranks)) if result.coordinated.params is not None else None)


def _rows(result: Result, ranks: _Ranks) -> Iterator[Row]:
    together, alone = result.coordinated, result.uncoordinated
    held, unscaled, param = (ranks.nested(values) or [] for values in (ranks.held, ranks.unscaled, ranks.param))
    assert together.params is not None
    assert alone.params is not None
    for r, row in enumerate(held):
        for i, value in enumerate(row):
            yield Row(
                rank=r,
                element=i,
                scaled=finite_or_name(value),
                unscaled=finite_or_name(unscaled[r][i]),
                nonfinite=result.nonfinite_after_reduction[r],
                scale=result.scale[r],
                param=param[r][i],
                decision_coordinated=together.decision,
                param_coordinated=together.params[r][i],
                scale_next_coordinated=together.next_scale[r],
                decision_alone=alone.decision_per_rank[r],
                param_alone=alone.params[r][i],
                scale_next_alone=alone.next_scale[r],
            )
