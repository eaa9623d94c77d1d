"""When to clip, if a step is accumulated over several microsteps: once, after the sum, or at every microstep.

Words and symbols: microstep k of K leaves the gradient g_k in `.grad`, as a multiple S (`scale`, the loss scale) of the
true one; c = `max_norm` is the threshold, e = `eps`, all norms are 2-norms. With u_k = g_k / S and

    clip(v) = v · min(1, c / (|v| + e))          (v itself where |v| = 0)

    clip_of_sum      clip(u_1 + … + u_K)                      the right way where the step uses the sum
    clip_of_mean     clip((u_1 + … + u_K) / K)                the right way where the step uses the mean
    sum_of_clipped   clip(u_1) + … + clip(u_K)
    mean_of_clipped  (clip(u_1) + … + clip(u_K)) / K
    running_clip     a_K, where a_0 = 0 and a_k = clip(a_{k-1} + u_k)     `.grad` clipped in place after each backward
    clip_before_unscale   clip(g_1 + … + g_K) / S         the sum clipped while it still carries the loss scale

The rule is that of `torch.nn.utils.clip_grad_norm_` (documentation and source, torch 2.13), which has e = 1e-6; the
default here is the exact ratio, e = 0. Shapes: K rows of d numbers, a gradient's own unit; float64 throughout.
Every wrong order can also turn the direction: clipping is not linear, so it does not commute with a sum.
"""

from fractions import Fraction
from typing import Literal

import numpy as np
from pydantic import Field

from samestep.app.contract import models
from samestep.app.contract.arrays import Floats, Written, rectangle
from samestep.app.contract.errors import InputError
from samestep.app.contract.fields import NonNegative, Positive, RankRows, RawMatrix
from samestep.app.contract.limits import MAX_CELLS, MAX_LISTED_CELLS, MAX_RANKS
from samestep.app.contract.numbers import as_float

SchemeName = Literal[
    "clip_of_sum", "clip_of_mean", "sum_of_clipped", "mean_of_clipped", "running_clip", "clip_before_unscale"
]
ReferenceName = Literal["clip_of_sum", "clip_of_mean"]

MAX_MICROSTEPS = MAX_RANKS

_REFERENCE: dict[SchemeName, ReferenceName] = {
    "clip_of_sum": "clip_of_sum",
    "clip_of_mean": "clip_of_mean",
    "sum_of_clipped": "clip_of_sum",
    "mean_of_clipped": "clip_of_mean",
    "running_clip": "clip_of_sum",
    "clip_before_unscale": "clip_of_sum",
}
_SAME = 1e-12
"""Vectors this near, relative to the larger one's norm, count as the same: rounding of a few operations."""


class Inputs(models.Inputs):
    """The gradients of the microsteps, all of one length, and the clipping rule."""

    microstep_grads: RawMatrix = Field(min_length=1, max_length=MAX_MICROSTEPS, examples=[[[3, 4], [-3, 0]]])
    max_norm: NonNegative
    scale: Positive = Fraction(1)
    eps: NonNegative = Fraction(0)


class Query(models.Query):
    """The panel: one row per microstep."""

    microstep_grads: RankRows = Field(default="3,4;-3,0", validate_default=True)
    max_norm: NonNegative = Fraction(1)
    scale: Positive = Fraction(1)
    eps: NonNegative = Fraction(0)
    scheme: SchemeName = "running_clip"

    def inputs(self) -> Inputs:
        """The body that these fields stand for."""
        rows: list[list[Written]] = [[float(value) for value in row] for row in self.microstep_grads]
        return Inputs(microstep_grads=rows, max_norm=self.max_norm, scale=self.scale, eps=self.eps)


class SchemeResult(models.Result):
    """The gradient that one order hands to the optimizer, beside the right one for the same reduction.

    `gradient` is null above MAX_LISTED_CELLS elements; the ratio of norms and the cosine are null (`zero_reference`)
    where the reference is zero, the cosine also where the gradient itself is.
    """

    gradient: list[float] | None
    norm: float
    reference: ReferenceName
    matches_reference: bool
    norm_ratio: float | None
    cosine_with_reference: float | None
    max_abs_difference: float
    reason: models.Reason | None


class Microstep(models.Result):
    """One microstep by itself: its norm, the coefficient that it alone would get, and the accumulated gradient's norm
    after it, with and without clipping on the way."""

    microstep: int
    norm: float
    coefficient: float
    norm_of_sum_so_far: float
    running_coefficient: float
    running_norm: float
    gradient: list[float] | None
    clipped: list[float] | None
    sum_so_far: list[float] | None
    running: list[float] | None


class Result(models.Result):
    """All orders side by side; gradients with one entry an element are null above MAX_LISTED_CELLS of them.

    `clip_after_unscale` is `clip_of_sum` by another name: the right order for a scaled sum.
    """

    clip_of_sum: list[float] | None
    clip_of_mean: list[float] | None
    sum_of_clipped: list[float] | None
    mean_of_clipped: list[float] | None
    running_clip: list[float] | None
    clip_before_unscale: list[float] | None
    clip_after_unscale: list[float] | None
    sum: list[float] | None
    sum_norm: float
    mean_norm: float
    scaled_sum_norm: float
    coefficient_of_sum: float
    coefficient_of_mean: float
    coefficient_before_unscale: float
    schemes: dict[SchemeName, SchemeResult]
    microsteps: list[Microstep] | None

    def tables(self) -> list[models.Table]:
        """One row an order, then one a microstep."""
        header = ("scheme", *SchemeResult.model_fields)
        rows = [(name, *(_flat(value) for _, value in scheme)) for name, scheme in self.schemes.items()]
        tables = [models.Table(header=header, rows=rows)]
        if self.microsteps is not None:
            steps = [tuple(_flat(value) for _, value in step) for step in self.microsteps]
            tables.append(models.Table(header=tuple(Microstep.model_fields), rows=steps))
        return tables


class View(Result):
    """What the panel shows: the selected order, and the threshold."""

    selected: SchemeName
    current: SchemeResult
    max_norm: float


def _flat(value: object) -> str | float | int | bool | None:
    """A cell of a table: a list becomes `a,b`."""
    if isinstance(value, list):
        return ",".join(map(repr, value))
    assert value is None or isinstance(value, str | float | int | bool)
    return value


def _norm(vector: Floats) -> float:
    """The 2-norm, of values divided by a power of two so that squares stay inside float64."""
    peak = float(np.abs(vector).max())
    if peak == 0:
        return 0.0
    unit = float(np.ldexp(1.0, np.frexp(peak)[1] - 1))
    return unit * float(np.sqrt(np.square(vector / unit).sum()))


def _finite(vector: Floats, field: str = "microstep_grads") -> Floats:
    if not np.isfinite(vector).all():
        en, zh = "take a gradient or a norm out of float64", "使梯度或范数超出 float64 的范围"
        raise InputError(en, zh, field=field, code="number_range")
    return vector


class _Rule:
    """clip(v) of the module's docstring."""

    def __init__(self, max_norm: float, eps: float) -> None:
        self.max_norm = max_norm
        self.eps = eps

    def coefficient(self, norm: float) -> float:
        whole = norm + self.eps
        return 1.0 if norm == 0 or whole <= self.max_norm else self.max_norm / whole

    def clip(self, vector: Floats) -> Floats:
        norm = _norm(vector)
        if norm == 0 or norm + self.eps <= self.max_norm:
            return vector
        # First to length one: a tiny coefficient alone would lose digits that the product need not lose.
        return vector / (norm + self.eps) * self.max_norm + 0.0


def _running(rule: _Rule, gradients: Floats) -> tuple[Floats, list[float]]:
    """The accumulated gradient after each microstep, clipped in place every time, and the coefficients."""
    held = np.zeros(gradients.shape[1])
    states, coefficients = np.empty_like(gradients), []
    for k, gradient in enumerate(gradients):
        held = _finite(held + gradient)
        coefficients.append(rule.coefficient(float(_finite(np.array(_norm(held))))))
        held = rule.clip(held)
        states[k] = held
    return states, coefficients


def _compare(name: SchemeName, vectors: dict[SchemeName, Floats]) -> SchemeResult:
    reference = _REFERENCE[name]
    vector, right = vectors[name], vectors[reference]
    norm, right_norm = _norm(vector), _norm(right)
    difference = float(np.abs(vector - right).max())
    cosine = ratio = None
    if right_norm:
        ratio = norm / right_norm
        if norm:
            cosine = min(1.0, max(-1.0, float((vector / norm) @ (right / right_norm))))
    return SchemeResult(
        gradient=_listed(vector),
        norm=norm,
        reference=reference,
        matches_reference=difference <= _SAME * max(norm, right_norm),
        norm_ratio=ratio if ratio is None or np.isfinite(ratio) else None,
        cosine_with_reference=cosine,
        max_abs_difference=difference,
        reason=None if right_norm else "zero_reference",
    )


def _listed(vector: Floats) -> list[float] | None:
    return vector.tolist() if len(vector) <= MAX_LISTED_CELLS else None


@np.errstate(all="ignore")
def compute(inputs: Inputs) -> Result:
    """Every order on the same gradients; InputError where rows differ in length or a value leaves float64."""
    if sum(map(len, inputs.microstep_grads)) > MAX_CELLS:
        en, zh = f"hold more than {MAX_CELLS:,} values", f"的值超过 {MAX_CELLS:,} 个"
        raise InputError(en, zh, field="microstep_grads", code="too_long")
    scaled = rectangle(inputs.microstep_grads, "microstep_grads", "microstep", "微步")
    scale, rule = float(inputs.scale), _Rule(float(inputs.max_norm), float(inputs.eps))
    gradients = _finite(scaled / scale, "scale")
    clipped = np.array([rule.clip(gradient) for gradient in gradients])
    sums = _finite(np.cumsum(gradients, axis=0))
    running, running_coefficients = _running(rule, gradients)
    total, scaled_total = sums[-1], _finite(scaled.sum(axis=0))
    mean = total / len(gradients)
    vectors: dict[SchemeName, Floats] = {
        "clip_of_sum": rule.clip(total),
        "clip_of_mean": rule.clip(mean),
        "sum_of_clipped": clipped.sum(axis=0),
        "mean_of_clipped": clipped.sum(axis=0) / len(clipped),
        "running_clip": running[-1],
        "clip_before_unscale": _finite(rule.clip(scaled_total) / scale, "scale"),
    }
    norms = np.array([_norm(total), _norm(mean), _norm(scaled_total), *map(_norm, gradients), *map(_norm, sums)])
    sum_norm, mean_norm, scaled_norm = _finite(norms)[:3].tolist()
    lists: dict[str, list[float] | None] = {name: _listed(vector) for name, vector in vectors.items()}
    return Result(
        **lists,
        clip_after_unscale=lists["clip_of_sum"],
        sum=_listed(total),
        sum_norm=sum_norm,
        mean_norm=mean_norm,
        scaled_sum_norm=scaled_norm,
        coefficient_of_sum=rule.coefficient(sum_norm),
        coefficient_of_mean=rule.coefficient(mean_norm),
        coefficient_before_unscale=rule.coefficient(scaled_norm),
        schemes={name: _compare(name, vectors) for name in vectors},
        microsteps=_microsteps(rule, gradients, clipped, sums, running, running_coefficients),
    )


def _microsteps(
    rule: _Rule, gradients: Floats, clipped: Floats, sums: Floats, running: Floats, coefficients: list[float]
) -> list[Microstep] | None:
    if gradients.size > MAX_LISTED_CELLS:
        return None
    return [
        Microstep(
            microstep=k,
            norm=_norm(gradient),
            coefficient=rule.coefficient(_norm(gradient)),
            norm_of_sum_so_far=_norm(sums[k]),
            running_coefficient=coefficients[k],
            running_norm=_norm(running[k]),
            gradient=gradient.tolist(),
            clipped=clipped[k].tolist(),
            sum_so_far=sums[k].tolist(),
            running=running[k].tolist(),
        )
        for k, gradient in enumerate(gradients)
    ]


def present(inputs: Inputs, scheme: str | None = None) -> View:
    """What is shown of a body, with one of the orders selected: the first, unless `scheme` names another."""
    result = compute(inputs)
    shown = models.selection(result.schemes, scheme)
    return View(**dict(result), **shown, max_norm=as_float(inputs.max_norm))
