"""An update that is a function of a whole matrix, taken of each shard by itself.

Words and symbols: the gradient G of one matrix is cut along `axis` as `torch.chunk` cuts, ⌈n/shards⌉ rows or columns
each (empty shards vanish). The methods are those of `updates`; their result is multiplied by `scale` s(m, n):

    none 1 · original √max(1, m/n) · match_rms_adamw 0.2·√max(m, n)        (torch 2.13, Muon's adjust_lr_fn)

    whole                          s·f(G), the right one; Megatron-Core's modes duplicated and distributed
    per_shard                      s·f(shard), put together; its mode blockwise
    per_shard_shape_scaled         the same with s of the shard's own shape

and for adafactor, whose f divides by max(1, root mean square) at the end,

    per_shard                      every statistic of the shard's own
    statistics_reduced             C, mean(R) and the clip's mean square pooled over shards: the right one again
    statistics_reduced_clip_local  C and mean(R) pooled, the clip's mean square the shard's own

Directions without learning rate, momentum and decay; float64. The relative difference is |update - whole|/|whole|.
"""

from collections.abc import Callable
from fractions import Fraction
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, model_validator

from samestep.app.calculators.matrix_update.updates import (
    adafactor,
    newton_schulz,
    norm,
    norms,
    polar,
    root_mean_square,
    shampoo,
)
from samestep.app.contract import models
from samestep.app.contract.arrays import Floats, Written, rectangle
from samestep.app.contract.errors import InputError
from samestep.app.contract.fields import NonNegative, RawMatrix, RowsText, numbers, whole_number
from samestep.app.contract.limits import MAX_RANKS
from samestep.app.contract.numbers import as_json

SchemeName = Literal[
    "whole", "per_shard", "per_shard_shape_scaled", "statistics_reduced", "statistics_reduced_clip_local"
]
Method = Literal["polar", "newton_schulz", "shampoo", "adafactor"]
Scaling = Literal["none", "original", "match_rms_adamw"]
Axis = Literal["rows", "columns"]

MAX_SIDE = 256
MAX_NS_STEPS = 99
SHOWN_SIDE = 16
_SAME = 1e-10
"""Updates this near, relative to the whole's norm, are the same: rounding of a singular value decomposition."""

Shards = Annotated[int, whole_number(1, MAX_RANKS)]
NewtonSchulzSteps = Annotated[int, whole_number(0, MAX_NS_STEPS)]
Coefficients = Annotated[tuple[Fraction, ...], numbers(most=3)]


class Inputs(models.Inputs):
    """One matrix's gradient, how it is cut, and what makes an update of it. `coefficients` are a, b, c of
    newton_schulz, `damping` is shampoo's."""

    gradient: RawMatrix = Field(default=[[3, 1], [1, 2], [2, -1], [0, 1]], examples=[[[3, 1], [1, 2], [2, -1], [0, 1]]])
    shards: Shards = 2
    axis: Axis = "rows"
    method: Method = "polar"
    scale: Scaling = "none"
    ns_steps: NewtonSchulzSteps = 5
    damping: NonNegative = Fraction(1, 100)
    coefficients: Coefficients = Field(
        default=(3.4445, -4.775, 2.0315), validate_default=True, examples=[[3.4445, -4.775, 2.0315]]
    )

    @model_validator(mode="after")
    def _fits(self) -> "Inputs":
        if len(self.coefficients) != 3:
            en, zh = (
                f"need three numbers; there are {len(self.coefficients)}",
                f"应为三个数；现在有 {len(self.coefficients)} 个",
            )
            raise InputError(en, zh, field="coefficients", code="shape_mismatch")
        if self.method == "adafactor" and self.axis == "columns":
            en, zh = "must be rows for adafactor", "用 adafactor 时只能按行切（rows）"
            raise InputError(en, zh, field="axis", code="literal_error")
        return self


class Query(models.Query):
    """The panel: the gradient in rows, the coefficients as they are by default."""

    gradient: RowsText = Field(default="3,1;1,2;2,-1;0,1", validate_default=True)
    shards: Shards = 2
    axis: Axis = "rows"
    method: Method = "polar"
    scale: Scaling = "none"
    ns_steps: NewtonSchulzSteps = 5
    damping: NonNegative = Fraction(1, 100)
    scheme: SchemeName = "per_shard"

    def inputs(self) -> Inputs:
        """The body that these fields stand for."""
        fields = {name: getattr(self, name) for name in Query.model_fields if name not in ("gradient", "scheme")}
        rows: list[list[Written]] = [[as_json(cell) for cell in row] for row in self.gradient]
        return Inputs(gradient=rows, **fields)


class SchemeResult(models.Result):
    """One update beside that of the whole matrix: difference and cosine are null (`zero_reference`) where the whole's
    update is 0, the cosine also where this one is."""

    defined: bool
    reason: models.Reason | None
    matches_reference: bool
    update: list[list[float]]
    norm: float
    relative_difference: float | None
    cosine: float | None


class Result(models.Result):
    """The sizes of the shards, and every way to make an update of them."""

    rows: int
    columns: int
    shard_sizes: list[int]
    schemes: dict[SchemeName, SchemeResult]

    def tables(self) -> list[models.Table]:
        """One row a way, then one an element."""
        header = ("scheme", "matches_reference", "norm", "relative_difference", "cosine", "reason")
        rows = [(name, *(getattr(scheme, field) for field in header[1:])) for name, scheme in self.schemes.items()]
        places = [(i, j) for i in range(self.rows) for j in range(self.columns)]
        updates = [(i, j, *(scheme.update[i][j] for scheme in self.schemes.values())) for i, j in places]
        return [
            models.Table(header=header, rows=rows),
            models.Table(header=("row", "column", *self.schemes), rows=updates),
        ]


class View(Result):
    """What the panel shows: one of the ways, and a corner of the matrices."""

    selected: SchemeName
    current: SchemeResult
    method: Method
    axis: Axis
    corner: int
    gradient: list[list[float]]
    difference: list[list[float]]


@np.errstate(all="ignore")
def compute(inputs: Inputs) -> Result:
    """Every way on one gradient; InputError where rows differ in length or a number leaves float64."""
    gradient = _gradient(inputs)
    parts = _cut(gradient, inputs)
    ways = _adafactors(gradient, parts) if inputs.method == "adafactor" else _ways(parts, inputs, gradient)
    scale = _scale(inputs.scale, gradient)
    updates = {name: update if name == "per_shard_shape_scaled" else update * scale for name, update in ways.items()}
    right = _finite(updates["whole"], inputs)
    return Result(
        rows=gradient.shape[0],
        columns=gradient.shape[1],
        shard_sizes=[part.shape[0 if inputs.axis == "rows" else 1] for part in parts],
        schemes={name: _compared(_finite(update, inputs), right, inputs) for name, update in updates.items()},
    )


def present(inputs: Inputs, scheme: str | None = None) -> View:
    """What is shown of a body, with one of the ways selected: the whole's, unless `scheme` names another."""
    result = compute(inputs)
    known: dict[SchemeName, SchemeResult] = result.schemes
    selected = models.chosen(known, scheme)
    current, whole = known[selected], known["whole"]
    corner = slice(SHOWN_SIDE)
    off = np.array(current.update)[corner, corner] - np.array(whole.update)[corner, corner]
    return View(
        **dict(result),
        selected=selected,
        current=current,
        method=inputs.method,
        axis=inputs.axis,
        corner=SHOWN_SIDE,
        gradient=rectangle([row[corner] for row in inputs.gradient[corner]], "gradient", "row", "行").tolist(),
        difference=off.tolist(),
    )


def _gradient(inputs: Inputs) -> Floats:
    rows = inputs.gradient
    if not rows:
        raise InputError("needs at least 1 entries", "至少要有 1 项", field="gradient", code="too_short")
    if len(rows) > MAX_SIDE or max(map(len, rows)) > MAX_SIDE:
        en, zh = f"is larger than {MAX_SIDE} × {MAX_SIDE}", f"大于 {MAX_SIDE} × {MAX_SIDE}"
        raise InputError(en, zh, field="gradient", code="too_long")
    gradient = rectangle(rows, "gradient", "row", "行")
    if not np.isfinite(norm(gradient)):
        raise InputError(
            "has a norm beyond float64", "的范数超出 float64 的范围", field="gradient", code="number_range"
        )
    return gradient


def _cut(gradient: Floats, inputs: Inputs) -> list[Floats]:
    axis = 0 if inputs.axis == "rows" else 1
    length = gradient.shape[axis]
    size = -(-length // inputs.shards)
    return np.split(gradient, range(size, length, size), axis=axis)


def _method(inputs: Inputs) -> Callable[[Floats], Floats]:
    if inputs.method == "shampoo":
        return lambda part: shampoo(part, float(inputs.damping))
    if inputs.method == "newton_schulz":
        a, b, c = map(float, inputs.coefficients)
        return lambda part: newton_schulz(part, inputs.ns_steps, (a, b, c))
    return polar


def _ways(parts: list[Floats], inputs: Inputs, gradient: Floats) -> dict[SchemeName, Floats]:
    """Without the whole's scale; the last one has its own."""
    method, axis = _method(inputs), 0 if inputs.axis == "rows" else 1
    shards = [method(part) for part in parts]
    scaled = [shard * _scale(inputs.scale, shard) for shard in shards]
    return {
        "whole": method(gradient),
        "per_shard": np.concatenate(shards, axis),
        "per_shard_shape_scaled": np.concatenate(scaled, axis),
    }


def _adafactors(gradient: Floats, parts: list[Floats]) -> dict[SchemeName, Floats]:
    columns, size = norms(gradient, 0), norm(gradient)
    pooled = [adafactor(part, columns, size) for part in parts]
    together = np.concatenate(pooled)
    return {
        "whole": _clipped(adafactor(gradient)),
        "per_shard": np.concatenate([_clipped(adafactor(part)) for part in parts]),
        "statistics_reduced": together / max(1.0, root_mean_square(together)),
        "statistics_reduced_clip_local": np.concatenate([_clipped(part) for part in pooled]),
    }


def _clipped(update: Floats) -> Floats:
    return np.asarray(update / max(1.0, root_mean_square(update)))


def _scale(scaling: Scaling, matrix: Floats) -> float:
    rows, columns = matrix.shape
    if scaling == "original":
        return float(np.sqrt(max(1.0, rows / columns)))
    return 0.2 * float(np.sqrt(max(rows, columns))) if scaling == "match_rms_adamw" else 1.0


def _finite(update: Floats, inputs: Inputs) -> Floats:
    if not np.isfinite(update).all() or not np.isfinite(norm(update)):
        field = "coefficients" if inputs.method == "newton_schulz" else "gradient"
        en, zh = "take the update out of float64", "使更新超出 float64 的范围"
        raise InputError(en, zh, field=field, code="number_range")
    return update


def _compared(update: Floats, right: Floats, inputs: Inputs) -> SchemeResult:
    own, whole = norm(update), norm(right)
    difference = cosine = None
    if whole:
        difference = norm(_finite(update / whole - right / whole, inputs))
        if own:
            cosine = min(1.0, max(-1.0, float(((update / own) * (right / whole)).sum())))
    return SchemeResult(
        defined=True,
        reason=None if whole else "zero_reference",
        matches_reference=own == 0 if difference is None else difference <= _SAME,
        update=(update + 0.0).tolist(),
        norm=own,
        relative_difference=difference,
        cosine=cosine,
    )
