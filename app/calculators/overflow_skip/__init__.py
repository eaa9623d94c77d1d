"""One decision for all ranks when a gradient overflows, beside ranks that decide alone.

Words and symbols: rank r of P holds the scaled gradient S_r·g_r (`scaled_grads[r]`) under the loss scale S_r (`scale`),
and w_r (`params[r]`). With `reduce` the scaled gradients are first summed or averaged over the ranks (data parallel:
every rank then holds the same); without it the ranks hold shards. A rank's flag says whether what it holds then is
non-finite. An unflagged step is plain SGD, w' = w - lr·(scaled / S_r).

Coordinated: the flags are combined, any flag makes all ranks skip and all scales back off. Uncoordinated: each rank
follows its own flag. How a scale moves is in `loss_scaler`. Not modelled: the optimizer's own state.

Shapes: all rows of one rank have the same length d_r (without `reduce` d_r may differ); plain numbers, float64 out.
"""

from collections.abc import Iterator
from fractions import Fraction
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, StrictBool

from samestep.app.calculators.overflow_skip.gradients import ScaledGradients
from samestep.app.calculators.overflow_skip.loss_scaler import Flags, LossScaler, Scales
from samestep.app.contract import models
from samestep.app.contract.fields import ExtendedRankRows, RankRows, RawExtendedMatrix, RawMatrix, Real, whole_number
from samestep.app.contract.limits import MAX_RANKS
from samestep.app.contract.numbers import NonFinite, finite_or_name

Value = float | NonFinite
Decision = Literal["step", "skip"]

MAX_STEPS = 2**31 - 1
"""The largest growth interval and tracker."""


class Inputs(models.Inputs):
    """What every rank holds after the backward pass, and the scaler's state.

    `reduce` needs the same number of values on every rank. `growth_tracker` counts the finite steps since the last
    change of the scale.
    """

    scaled_grads: RawExtendedMatrix = Field(min_length=1, max_length=MAX_RANKS, examples=[[["inf"], [65536]]])
    params: RawMatrix = Field(max_length=MAX_RANKS, examples=[[[1], [1]]])
    scale: Scales
    lr: Real
    reduce: Literal["mean", "sum"] | None = None
    growth_interval: Annotated[int, whole_number(1, MAX_STEPS)] = 2000
    growth_tracker: Annotated[int, whole_number(0, MAX_STEPS)] = 0
    static_scale: StrictBool = False


class Query(models.Query):
    """The panel: scaled gradients, scale and parameters, rank by rank."""

    scaled_grads: ExtendedRankRows = Field(default="inf;65536", validate_default=True)
    scale: Scales = Field(default="65536", validate_default=True)
    params: RankRows = Field(default="1;1", validate_default=True)
    lr: Real = Fraction(1, 10)

    def inputs(self) -> Inputs:
        """The body that these fields stand for."""
        return Inputs(
            scaled_grads=[[finite_or_name(value) for value in row] for row in self.scaled_grads],
            params=[[float(value) for value in row] for row in self.params],
            scale=self.scale,
            lr=self.lr,
        )


class Coordinated(models.Result):
    """All ranks follow the combined flag. `params` is null above MAX_LISTED_CELLS cells."""

    decision: Decision
    params: list[list[float]] | None
    next_scale: list[float]
    next_growth_tracker: int
    successful_updates: int


class Uncoordinated(models.Result):
    """Every rank follows its own flag. `params` is null above MAX_LISTED_CELLS cells."""

    decision_per_rank: list[Decision]
    params: list[list[float]] | None
    next_scale: list[float]
    next_growth_tracker: list[int]
    successful_updates: list[int]


class Result(models.Result):
    """Both protocols side by side; `decision` is the coordinated one, `reason` says why it is `skip`.

    `replicas_equal_after_…` compare the ranks' parameters after the step; they are null where the ranks hold shards (no
    `reduce`) or did not begin equal. `scales_agree…` say whether all ranks have one loss scale, before the step and
    after each protocol.
    """

    decision: Decision
    reason: models.Reason | None
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

    def tables(self) -> list[models.Table]:
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
        return [models.Table(header=header, rows=rows)]


class Row(models.Result):
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

    def tables(self) -> list[models.Table]:
        if self.rows is None:
            return super().tables()
        rows = [tuple(value for _, value in row) for row in self.rows]
        return [models.Table(header=tuple(Row.model_fields), rows=rows), *super().tables()]


def _decisions(flags: Flags) -> list[Decision]:
    return ["skip" if flag else "step" for flag in flags.tolist()]


@np.errstate(all="ignore")
def compute(inputs: Inputs) -> Result:
    """Both protocols on the same gradients; InputError where the body does not hold together or leaves float64."""
    return _evaluate(inputs)[0]


def _evaluate(inputs: Inputs) -> tuple[Result, ScaledGradients]:
    ranks = ScaledGradients.of(inputs.scaled_grads, inputs.params, inputs.scale, inputs.reduce)
    scaler = LossScaler(inputs.growth_tracker, inputs.growth_interval, inputs.static_scale)
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
def present(inputs: Inputs) -> View:
    """What is shown of a body: the answer, element by element."""
    result, ranks = _evaluate(inputs)
    return View(**dict(result), rows=list(_rows(result, ranks)) if result.coordinated.params is not None else None)


def _rows(result: Result, ranks: ScaledGradients) -> Iterator[Row]:
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
