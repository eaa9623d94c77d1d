"""What a recipe is asked for: a framework's setting and release, what the loss does itself, the window's counts."""

from fractions import Fraction
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from samestep.app.calculators.framework_recipe.rules import (
    RULES,
    FrameworkId,
    Reduction,
    settings_of,
)
from samestep.app.contract import models
from samestep.app.contract.errors import InputError
from samestep.app.contract.fields import OrBlank, Positive, whole_number, whole_rows
from samestep.app.contract.forms import Form
from samestep.app.contract.limits import MAX_RANKS

MAX_COUNT = 10**9


MAX_CELLS = 65_536


_Setting = Annotated[str, Field(min_length=1, max_length=40)]


_Group = Annotated[int, whole_number(1, MAX_RANKS)]


_Accumulation = Annotated[Annotated[int, whole_number(1, MAX_CELLS)] | None, OrBlank]


_Count = Annotated[int, whole_number(0, MAX_COUNT)]


_CountRows = Annotated[tuple[tuple[int, ...], ...], whole_rows(0, MAX_COUNT)]
_Counts = Annotated[list[list[_Count]], Form("matrix")]


class Inputs(models.Inputs):
    """A framework's setting, what the loss does itself, and the window's counts.

    `loss_factor`: what the reader multiplies the loss by already. `denominator`: the constant that a custom reduction
    divides the sum by. `accumulation`: K as configured; None for as many as the window has. `version`: of the
    framework, None for the newest that was measured.
    """

    framework: FrameworkId = "torch_ddp"
    setting: _Setting = "default"
    version: Annotated[str | None, Field(max_length=40)] = None
    loss_reduction: Reduction = "mean"
    denominator: Positive | None = None
    loss_factor: Positive = Fraction(1)
    counts: _Counts = Field(min_length=1, max_length=MAX_RANKS, examples=[[[2, 8], [5, 1]]])
    accumulation: _Accumulation = None
    context_parallel: _Group = 1
    context_reduction: Literal["mean", "sum"] = "mean"
    expert_parallel: _Group = 1

    @model_validator(mode="after")
    def _fits(self) -> "Inputs":
        settings = settings_of(self.framework)
        if self.setting not in settings:
            listed = ", ".join(settings)
            raise InputError(f"must be one of {listed}", f"应为 {listed} 之一", field="setting", code="literal_error")
        if any(not row for row in self.counts) or sum(map(len, self.counts)) > MAX_CELLS:
            en, zh = (
                f"need 1 or more values a rank, {MAX_CELLS:,} in all",
                f"每个 rank 至少一个值，总共不超过 {MAX_CELLS:,} 个",
            )
            raise InputError(en, zh, field="counts", code="shape_mismatch")
        if self.loss_reduction == "custom" and self.denominator is None:
            raise InputError(
                "is needed for a custom reduction", "自定义归一化需要它", field="denominator", code="missing"
            )
        longest = max(map(len, self.counts))
        if self.accumulation is not None and self.accumulation < longest:
            en, zh = f"must be {longest} or more, as many as a rank has", f"不能小于一个 rank 的微步数 {longest}"
            raise InputError(en, zh, field="accumulation", code="greater_than_equal")
        for field in ("context_parallel", "expert_parallel"):
            if len(self.counts) % getattr(self, field):
                en, zh = f"must divide the {len(self.counts)} ranks", f"应能整除 {len(self.counts)} 个 rank"
                raise InputError(en, zh, field=field, code="not_divisible")
        return self


def _known(value: object) -> object:
    """`framework/setting`; a framework alone means its first setting."""
    framework, _, setting = value.partition("/") if isinstance(value, str) else ("", "", "")
    known = [rule for rule in RULES if rule.framework == framework and setting in ("", rule.setting)]
    if not known:
        listed = ", ".join(dict.fromkeys(rule.framework for rule in RULES))
        en, zh = f"must be one of {listed}, or one of them with /setting", f"应为 {listed} 之一，可加 /设置"
        raise InputError(en, zh, code="literal_error")
    return f"{framework}/{known[0].setting}"


class Query(models.Query):
    """The panel: the counts in the grammar of matrices, blank fields for what is not given.

    `framework` names a setting too (`transformers/own_counts`); without one it is the framework's first.
    """

    framework: Annotated[str, BeforeValidator(_known)] = "torch_ddp/default"
    version: Annotated[str | None, Field(max_length=40), OrBlank] = None
    loss_reduction: Reduction = "mean"
    denominator: Annotated[Positive | None, OrBlank] = None
    loss_factor: Positive = Fraction(1)
    counts: _CountRows = Field(default="2,8;5,1", validate_default=True)
    accumulation: _Accumulation = None
    context_parallel: _Group = 1
    context_reduction: Literal["mean", "sum"] = "mean"
    expert_parallel: _Group = 1

    def inputs(self) -> Inputs:
        """The body of these fields."""
        framework, _, setting = self.framework.partition("/")
        same = set(Inputs.model_fields) - {"framework", "setting", "counts"}
        fields = {name: getattr(self, name) for name in same}
        return Inputs.model_validate(
            {**fields, "framework": framework, "setting": setting, "counts": list(map(list, self.counts))}
        )
