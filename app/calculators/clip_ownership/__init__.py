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

A non-finite value in any copy on any rank makes all ranks skip.

Shapes: `ranks[r][k].grad` has d_k elements; the answer's nested lists have the same shape, arrays inside are flat, copy
after copy, rank after rank. All numbers are plain (the parameters' and gradients' own units); norms are float64.
"""

import math
from fractions import Fraction
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from samestep.app.calculators.clip_ownership.clipping import ClippingRule
from samestep.app.calculators.clip_ownership.copies import Copies, GradientCopy
from samestep.app.calculators.clip_ownership.listing import (
    Row,
    Square,
    UnscaledGradient,
    rows_of_elements,
    squares_of,
    unscaled_gradients,
)
from samestep.app.calculators.clip_ownership.schemes import (
    NamedGradient,
    NamedParam,
    Norm,
    SchemeName,
    SchemeResult,
    scheme_results,
)
from samestep.app.calculators.clip_ownership.tables import TABLES
from samestep.app.contract import models
from samestep.app.contract.arrays import Floats
from samestep.app.contract.errors import InputError
from samestep.app.contract.fields import (
    JSON,
    ExtendedRankRows,
    NonNegative,
    OptionalRowsText,
    Positive,
    Real,
    number_schema,
)
from samestep.app.contract.forms import Form
from samestep.app.contract.limits import MAX_CELLS, MAX_RANKS
from samestep.app.contract.numbers import extended, finite_or_name, whole

Decision = Literal["update", "skip_all_ranks"]

TORCH_EPS = 1e-6


def _above_zero(value: object) -> float:
    number = extended(value)
    if not number > 0:
        raise InputError("must be greater than 0", "必须大于 0", code="greater_than")
    return number


_NORM_SCHEMA = {"anyOf": [number_schema(exclusiveMinimum=0), {"enum": ["inf"]}]}
NormType = Annotated[float, Form("number", _above_zero, _NORM_SCHEMA, finite_or_name)]
"""p of the p-norm: 1, 2, any p > 0, or `inf`."""


class Inputs(models.Inputs):
    """The copies that every rank holds, and the clipping rule. A rank may hold none."""

    ranks: Annotated[list[list[GradientCopy]], JSON] = Field(
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

    tables: ClassVar = TABLES


def _rank_or_none(value: object) -> int | None:
    if value is None or (isinstance(value, str) and value.strip().lower() in ("", "none")):
        return None
    try:
        rank = whole(value)
    except InputError:
        rank = -1
    if rank < 0:
        raise InputError("must be a rank: 0, 1, …", "应是 rank 编号：0、1、……", code="rank_type")
    return rank


_RANK_SCHEMA = {"anyOf": [{"type": "integer", "minimum": 0}, {"enum": ["", "none"]}]}
RankOrNone = Annotated[int | None, Form("number", _rank_or_none, _RANK_SCHEMA)]


class Query(models.Query):
    """The panel: scaled gradients rank by rank, and a gradient that every rank holds and the first one owns."""

    gradients: ExtendedRankRows = Field(default="24;32", validate_default=True)
    replicated: OptionalRowsText = None
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
        param = float(self.param)
        ranks: list[list[GradientCopy]] = []
        for r, row in enumerate(self.gradients):
            grad: list[int | float | str] = [finite_or_name(value) for value in row]
            if r == self.overflow:
                grad[0] = "inf"
            ranks.append([{"id": _letters(r), "grad": grad, "owner": True, "param": [param] * len(grad)}])
            if self.replicated is not None:
                shared: list[int | float | str] = [float(value) for value in self.replicated[0]]
                ranks[-1].append({"id": "shared", "grad": shared, "owner": r == 0, "param": [param] * len(shared)})
        rule = {name: getattr(self, name) for name in ("max_norm", "loss_scale", "eps", "lr")}
        return Inputs.model_validate({"ranks": ranks, "norm_type": finite_or_name(self.norm_type), **rule})


def _letters(index: int) -> str:
    """a, b, … z, aa, ab, …"""
    head, last = divmod(index, 26)
    return (_letters(head - 1) if head else "") + chr(ord("a") + last)


class ClippedBeforeUnscale(models.Result):
    """Clipping by mistake before the division by the loss scale: norm and coefficient of the scaled gradient."""

    norm: Norm
    coefficient: float | None
    norm_after_unscale: float | None


class Result(models.Result):
    """The update by global norm, and what other ways of counting would find.

    Norms of non-finite gradients are the strings `inf` or `nan` (nan prevails), their coefficients null. Lists with
    one entry a copy or an element are null above MAX_LISTED_CELLS cells, `applied` also when all ranks skip,
    `param_after` where `param` or `lr` was not given.
    """

    decision: Decision
    defined: bool
    reason: models.Reason | None
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

    def tables(self) -> list[models.Table]:
        """Three tables: the quantities, the ranks, and (where listed) what each copy adds to the norm."""
        quantities = [(name, value) for name, value in self if isinstance(value, bool | float | str) or value is None]
        ranks = [(r, *pair) for r, pair in enumerate(zip(self.local_norms, self.local_coefficients, strict=True))]
        tables = [
            models.Table(header=("quantity", "value"), rows=list(quantities)),
            models.Table(header=("rank", "local_norm", "local_coefficient"), rows=list(ranks)),
        ]
        if self.squares is not None:
            rows = [tuple(value for _, value in square) for square in self.squares]
            tables.append(models.Table(header=tuple(Square.model_fields), rows=rows))
        return tables


class View(Result):
    """What the panel shows: the selected scheme, one row for each element of each copy, and what the step was made with
    (`lr` is null where none was given)."""

    selected: SchemeName
    current: SchemeResult
    rows: list[Row] | None
    norm_type: Norm
    loss_scale: float
    lr: float | None

    def tables(self) -> list[models.Table]:
        if self.rows is None:
            return super().tables()
        rows = [tuple(value for _, value in row) for row in self.rows]
        return [models.Table(header=tuple(Row.model_fields), rows=rows), *super().tables()]


def compute(inputs: Inputs) -> Result:
    """Clip by the global norm, and find what the other ways of counting would do.

    InputError where the body does not hold together, or where a result would leave float64.
    """
    with np.errstate(all="ignore"):
        return _evaluate(inputs, Copies.of(inputs.ranks))


def _evaluate(inputs: Inputs, copies: Copies) -> Result:
    rule = ClippingRule(inputs.norm_type, float(inputs.max_norm), float(inputs.eps))
    loss_scale = float(inputs.loss_scale)
    gradient = _unscaled(copies.scaled, loss_scale)
    finite = bool(np.isfinite(gradient).all())
    counted = copies.owned if finite else slice(None)  # what any rank finds non-finite shows in the norm of all
    every, global_norm, scaled, without_experts = rule.norms_of(
        gradient,
        gradient[counted],
        copies.scaled[counted],
        gradient[copies.owned & ~np.repeat(copies.expert, copies.size)],
    )
    local: list[float] = rule.norms(gradient, copies.rank_size).tolist()
    norms: dict[SchemeName, float | list[float]] = {"global_owner": global_norm, "per_rank": local, "every_copy": every}
    schemes = scheme_results(copies, rule, gradient, norms, inputs.lr)
    owner, total = schemes["global_owner"], _sum_of(local)
    return Result(
        decision="update" if finite else "skip_all_ranks",
        defined=finite,
        reason=owner.reason,
        global_norm=finite_or_name(global_norm),
        coefficient=rule.coefficient(global_norm),
        clipped_norm=owner.clipped_norm,
        local_norms=[finite_or_name(norm) for norm in local],
        local_coefficients=rule.coefficients(local),
        norm_if_every_copy_counted=finite_or_name(every),
        coefficient_if_every_copy_counted=rule.coefficient(every),
        norm_if_local_norms_averaged=finite_or_name(total / copies.ranks),
        max_of_local_norms=finite_or_name(float(np.max(local))),
        sum_of_local_norms=finite_or_name(total),
        norm_after_per_rank_clipping=schemes["per_rank"].clipped_norm,
        torch_clip_grad_norm_coefficient=min(1.0, rule.max_norm / (global_norm + TORCH_EPS)) if finite else None,
        norm_if_experts_omitted=finite_or_name(without_experts) if copies.expert.any() else None,
        if_clipped_before_unscale=_before_unscale(rule, scaled, loss_scale),
        copies_agree=copies.agree(),
        applied=owner.applied,
        param_after=owner.param_after,
        schemes=schemes,
        **_listed(copies, rule, gradient, every),
    )


def _unscaled(scaled: Floats, loss_scale: float) -> Floats:
    gradient = scaled / loss_scale
    if not np.isfinite(gradient[np.isfinite(scaled)]).all():
        en, zh = "takes the unscaled gradient out of float64", "使还原后的梯度超出 float64 的范围"
        raise InputError(en, zh, field="loss_scale", code="number_range")
    return gradient


def _sum_of(norms: list[float]) -> float:
    total = sum(norms)
    if math.isinf(total) and all(map(math.isfinite, norms)):
        en, zh = "have local norms whose sum is beyond float64", "的各卡范数之和超出 float64 的范围"
        raise InputError(en, zh, field="ranks", code="number_range")
    return total


def _before_unscale(rule: ClippingRule, norm: float, loss_scale: float) -> ClippedBeforeUnscale:
    clipped = float(rule.applied(np.array([norm]), [norm])[0])
    return ClippedBeforeUnscale(
        norm=finite_or_name(norm),
        coefficient=rule.coefficient(norm),
        norm_after_unscale=clipped / loss_scale if math.isfinite(norm) else None,
    )


def _listed(copies: Copies, rule: ClippingRule, gradient: Floats, every: float) -> dict[str, Any]:
    """The fields with one entry a gradient, a copy or an element."""
    if not copies.listed:
        return dict.fromkeys(("per_group_coefficients", "unscaled", "squares"))
    norms = rule.norms(gradient, copies.size)
    groups = zip(copies.names, rule.coefficients(norms.tolist()), copies.owner.tolist(), strict=True)
    return {
        "per_group_coefficients": {name: coefficient for name, coefficient, owns in groups if owns},
        "unscaled": unscaled_gradients(copies, gradient),
        "squares": squares_of(copies, rule.norm_type, norms, every),
    }


def present(inputs: Inputs, scheme: str | None = None) -> View:
    """What is shown of a body, element by element, with one way of counting selected."""
    with np.errstate(all="ignore"):
        copies = Copies.of(inputs.ranks)
        result = _evaluate(inputs, copies)
    selected = models.chosen(result.schemes, scheme)
    current = result.schemes[selected]
    rows = None if result.unscaled is None else list(rows_of_elements(copies, result.unscaled, current))
    norm_type = finite_or_name(inputs.norm_type)
    return View(
        **dict(result),
        selected=selected,
        current=current,
        rows=rows,
        norm_type=norm_type,
        loss_scale=float(inputs.loss_scale),
        lr=None if inputs.lr is None else float(inputs.lr),
    )


def panel(query: Query) -> View:
    """The panel's state: the answer, element by element."""
    try:
        return present(query.inputs(), query.scheme)
    except InputError as error:
        # In the panel the gradients are one field, whatever their place in the body.
        field = "gradients" if error.field[:1] == ("ranks",) else error.field
        raise InputError(error.en, error.zh, field=field, code=error.code) from None
