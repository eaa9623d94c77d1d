"""An optimizer's state before the window, as a body and as the fields of a panel."""

from fractions import Fraction
from typing import Annotated, Any, Literal

from pydantic import Field, StrictBool, model_validator

from samestep.app.contract import models
from samestep.app.contract.arrays import one_list
from samestep.app.contract.errors import InputError
from samestep.app.contract.fields import (
    ExtendedRowsText,
    NonNegative,
    OptionalRowsText,
    RawExtendedList,
    RawList,
    RowsText,
    number,
    whole_number,
)
from samestep.app.contract.limits import MAX_CELLS
from samestep.app.contract.numbers import finite_or_name

OptimizerName = Literal["adamw", "sgd"]
SchemeName = Literal[
    "skip", "step_called", "zero_grad", "none_grad", "clamped_denominator", "nan_grad", "scheduler_only"
]


MAX_STEP = 2**31 - 1


Beta = Annotated[Fraction, number(low=0, below=1)]


Steps = Annotated[int, whole_number(0, MAX_STEP)]


OWN: dict[OptimizerName, tuple[str, ...]] = {
    "adamw": ("exp_avg", "exp_avg_sq", "step", "beta1", "beta2", "eps"),
    "sgd": ("momentum", "momentum_buffer", "dampening", "nesterov"),
}


class Inputs(models.Inputs):
    """An optimizer's state before the window, and the gradient that `step()` would see.

    Without `exp_avg` and `exp_avg_sq` (AdamW) or `momentum_buffer` (SGD) the optimizer has not stepped yet. Fields of
    the other optimizer are refused. `scheduler_steps` counts the scheduler's calls so far.
    """

    optimizer: OptimizerName = "adamw"
    param: RawList = Field(min_length=1, max_length=MAX_CELLS, examples=[[1, -2]])
    grad: RawExtendedList = Field(min_length=1, max_length=MAX_CELLS, examples=[[0, 0]])
    lr: NonNegative
    weight_decay: NonNegative = Fraction(0)
    exp_avg: RawList | None = Field(default=None, max_length=MAX_CELLS, examples=[["0.5", "-0.25"]])
    exp_avg_sq: RawList | None = Field(default=None, max_length=MAX_CELLS, examples=[["0.04", "0.01"]])
    step: Steps = 0
    beta1: Beta = Fraction(9, 10)
    beta2: Beta = Fraction(999, 1000)
    eps: NonNegative = Fraction(1, 10**8)
    momentum: NonNegative = Fraction(0)
    momentum_buffer: RawList | None = Field(default=None, max_length=MAX_CELLS)
    dampening: NonNegative = Fraction(0)
    nesterov: StrictBool = False
    scheduler_steps: Steps = 0

    @model_validator(mode="after")
    def _holds_together(self) -> "Inputs":
        other: OptimizerName = "sgd" if self.optimizer == "adamw" else "adamw"
        for name in OWN[other]:
            if getattr(self, name) != type(self).model_fields[name].default:  # a form sends all it shows
                en, zh = f"belongs to {other}, not to {self.optimizer}", f"属于 {other}，不属于 {self.optimizer}"
                raise InputError(en, zh, field=name, code="other_optimizer")
        for name in ("grad", "exp_avg", "exp_avg_sq", "momentum_buffer"):
            values = getattr(self, name)
            if values is not None and len(values) != len(self.param):
                en = f"has {len(values)} values, param {len(self.param)}: one for each"
                zh = f"有 {len(values)} 个值，param 有 {len(self.param)} 个：应一一对应"
                raise InputError(en, zh, field=name, code="shape_mismatch")
        self._check_history()
        if self.nesterov and not (self.momentum > 0 and self.dampening == 0):
            en, zh = "needs a momentum above 0 and no dampening", "要求 momentum 大于 0 且 dampening 为 0"
            raise InputError(en, zh, field="nesterov", code="nesterov")
        return self

    def _check_history(self) -> None:
        if (self.exp_avg is None) != (self.exp_avg_sq is None):
            missing = "exp_avg" if self.exp_avg is None else "exp_avg_sq"
            en, zh = "is missing: both moments or neither", "缺失：两个矩要么都给，要么都不给"
            raise InputError(en, zh, field=missing, code="missing")
        if self.step > 0 and self.exp_avg is None:
            en, zh = "is above 0, but no exp_avg and exp_avg_sq are given", "大于 0，却没有给 exp_avg 与 exp_avg_sq"
            raise InputError(en, zh, field="step", code="no_history")


class Query(models.Query):
    """The panel. Only the fields of the chosen optimizer are read; lists may be written as rows or as columns."""

    optimizer: OptimizerName = "adamw"
    param: RowsText = Field(default="1,-2", validate_default=True)
    grad: ExtendedRowsText = Field(default="0,0", validate_default=True)
    lr: NonNegative = Fraction(1, 1000)
    weight_decay: NonNegative = Fraction(1, 10)
    exp_avg: OptionalRowsText = Field(default="0.5,-0.25", validate_default=True)
    exp_avg_sq: OptionalRowsText = Field(default="0.04,0.01", validate_default=True)
    step: Steps = 10
    beta1: Beta = Fraction(9, 10)
    beta2: Beta = Fraction(999, 1000)
    eps: NonNegative = Fraction(1, 10**8)
    momentum: NonNegative = Fraction(9, 10)
    momentum_buffer: OptionalRowsText = Field(default="0.5,-0.25", validate_default=True)
    scheme: SchemeName = "zero_grad"

    def inputs(self) -> Inputs:
        """The body that these fields stand for."""
        own = OWN[self.optimizer]
        body: dict[str, Any] = {"optimizer": self.optimizer, "param": one_list(self.param)}
        body["grad"] = [finite_or_name(value) for value in one_list(self.grad)]
        for name in ("lr", "weight_decay", *(name for name in own if name in Query.model_fields)):
            value = getattr(self, name)
            body[name] = one_list(value) if isinstance(value, tuple) else value
        return Inputs(**body)
