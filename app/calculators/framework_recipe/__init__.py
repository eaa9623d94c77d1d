"""What a framework's update really weights, who divides by what, and the factor that is missing on the loss.

Words and symbols: see `framework_rules`. `counts[r][k]` = n_rk valid tokens of rank r in microstep k; rows may be
ragged in a partial window. Every division multiplies a token's weight by 1/its count; the weight that the objective (
the mean over all N tokens) demands is 1/N. Hence

    weight of a token     w_rk = loss_factor · Π multiplications / Π divisions
    factor on the loss    f_rk = 1 / (N · w_rk)

f is one number where the loss is a sum, and proportional to n_rk (or n_r) where it is a mean. With context parallelism
the rows are the DP × CP ranks: each holds other tokens of the same sequences. A reduction that sums over the C ranks of
a context group and averages over the others divides by P/C. Expert parallelism E: an expert lives on P/E ranks and gets
its tokens' gradients by all-to-all, so that an average over its copies divides by P/E where dense parameters have P:
its gradient is E times too large against theirs. Source: the definition of a mean; the rules are measured.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from samestep.app.calculators.framework_recipe.rules import (
    RULES,
    FrameworkId,
    Reduction,
    Rule,
    Tail,
    When,
    Who,
    releases_of,
    settings_of,
)
from samestep.app.contract.errors import InputError
from samestep.app.contract.fields import OrBlank, Positive, RowsText, whole_number
from samestep.app.contract.forms import Form
from samestep.app.contract.limits import MAX_LISTED_CELLS, MAX_RANKS
from samestep.app.contract.models import (
    Inputs as InputsBase,
    Query as QueryBase,
    Result as ResultBase,
    Table,
)
from samestep.app.contract.numbers import fraction_text, whole

MAX_COUNT = 10**9
MAX_CELLS = 65_536

Objective = Literal["global_token_mean", "replica_equal", "microbatch_equal"]
Reason = Literal["zero_count", "empty_cell", "not_stepped"]
_Setting = Annotated[str, Field(min_length=1, max_length=40)]
_Group = Annotated[int, whole_number(1, MAX_RANKS)]
_Accumulation = Annotated[Annotated[int, whole_number(1, MAX_CELLS)] | None, OrBlank]
_Count = Annotated[int, whole_number(0, MAX_COUNT)]
_Counts = Annotated[list[list[_Count]], Form("matrix")]


class Inputs(InputsBase):
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


class Query(QueryBase):
    """The panel: the counts in the grammar of matrices, blank fields for what is not given.

    `framework` names a setting too (`transformers/own_counts`); without one it is the framework's first.
    """

    framework: Annotated[str, BeforeValidator(_known)] = "torch_ddp/default"
    version: Annotated[str | None, Field(max_length=40), OrBlank] = None
    loss_reduction: Reduction = "mean"
    denominator: Annotated[Positive | None, OrBlank] = None
    loss_factor: Positive = Fraction(1)
    counts: RowsText = Field(default="2,8;5,1", validate_default=True)
    accumulation: _Accumulation = None
    context_parallel: _Group = 1
    context_reduction: Literal["mean", "sum"] = "mean"
    expert_parallel: _Group = 1

    def inputs(self) -> Inputs:
        """The body of these fields."""
        framework, _, setting = self.framework.partition("/")
        counts = [[whole(count) for count in row] for row in self.counts]
        same = set(Inputs.model_fields) - {"framework", "setting", "counts"}
        fields = {name: getattr(self, name) for name in same}
        return Inputs.model_validate({**fields, "framework": framework, "setting": setting, "counts": counts})


@dataclass(frozen=True)
class _Step:
    """A division of the whole chain, the reader's own included; `by` is a count, or a field of the inputs."""

    who: Who
    by: str
    when: When
    multiplies: bool = False


class Step(ResultBase):
    """Who divides by what, and when. `value` is the count where every cell has the same one; with `multiplies` it is a
    multiplication."""

    who: Who
    by: str
    value: str | None
    when: When
    multiplies: bool


class Cell(ResultBase):
    """A cell's tokens: the weight that each really gets, the right one (1/N), and the factor on this cell's loss."""

    rank: int
    microstep: int
    n: int
    weight: float | None
    weight_exact: str | None
    right: float | None
    ratio: float | None
    factor: float | None
    factor_exact: str | None
    reason: Reason | None


class Experts(ResultBase):
    """Experts of a group of E ranks: on how many ranks each has a copy, and what their gradient is against the dense
    parameters', with the factor that makes it right."""

    copies: int
    ratio: float
    factor: str


class Result(ResultBase):
    """The weights and what is missing. `mass` = Σ n·w, 1 for a mean; `ratio` is w·N where all tokens have the same.

    `factor_expression` is f in n_rk, n_r, N, P, K; `factor` its value where it is the same for all cells. `tail` says
    what becomes of a window that is shorter than configured, `partial` that this one is. `release` is the one whose
    rule is applied, `measured_release` false where another version was asked for.
    """

    framework: FrameworkId
    setting: str
    release: str
    releases: list[str]
    measured_release: bool
    settings: list[str]
    P: int
    K: int
    N: int
    partial: bool
    tail: Tail
    your_loss: bool
    steps: list[Step]
    objective: Objective
    mass: float | None
    ratio: float | None
    ratio_exact: str | None
    defined: bool
    matches_reference: bool
    factor_expression: str
    factor: float | None
    factor_exact: str | None
    cells: list[Cell] | None
    experts: Experts | None
    measured_settings: list[str]
    source: str
    reason: Reason | None

    def tables(self) -> list[Table]:
        """The divisions, and the weights cell by cell."""
        steps = [(s.who, s.when, "times" if s.multiplies else "over", s.by, s.value) for s in self.steps]
        cells = [(c.rank, c.microstep, c.n, c.weight, c.right, c.ratio, c.factor, c.reason) for c in self.cells or ()]
        return [
            Table(header=("who", "when", "does", "by", "value"), rows=steps),
            Table(header=("rank", "microstep", "n", "weight", "right", "ratio", "factor", "reason"), rows=cells),
        ]


def compute(inputs: Inputs) -> Result:
    """Multiply the divisions of the framework's rule, cell by cell; InputError where a body does not fit."""
    rule, window = _rule(inputs), _Window(inputs)
    steps, total = _steps(inputs, rule), window.total
    partial = window.longest < window.accumulation
    waits = partial and rule.tail != "steps"
    cells = [
        _cell(r, k, n, Fraction(0) if waits else window.weight(steps, r, k), total, waits)
        for r, row in enumerate(inputs.counts)
        for k, n in enumerate(row)
    ]
    held = [cell for cell in cells if cell.n]
    undefined = any(cell.weight is None for cell in cells)
    defined = bool(total) and not undefined
    weights = {Fraction(cell.weight_exact or 0) for cell in held}
    factors = {cell.factor_exact for cell in held}
    ratio = weights.pop() * total if defined and len(weights) == 1 else None
    factor = factors.pop() if defined and len(factors) == 1 else None
    return Result(
        framework=rule.framework,
        setting=rule.setting,
        release=rule.release,
        releases=releases_of(rule.framework, rule.setting),
        measured_release=inputs.version in (None, rule.release),
        settings=settings_of(rule.framework),
        P=len(inputs.counts),
        K=window.accumulation,
        N=total,
        partial=partial,
        tail=rule.tail,
        your_loss=rule.yours,
        steps=[_shown(step, window) for step in steps],
        objective=_objective(steps),
        mass=_out(sum((cell.n * Fraction(cell.weight_exact or 0) for cell in held), Fraction(0))) if defined else None,
        ratio=None if ratio is None else _out(ratio),
        ratio_exact=None if ratio is None else fraction_text(ratio),
        defined=defined,
        matches_reference=ratio == 1,
        factor_expression=_expression(steps),
        factor=None if factor is None else _out(Fraction(factor)),
        factor_exact=factor,
        cells=cells if len(cells) <= MAX_LISTED_CELLS else None,
        experts=_experts(inputs),
        measured_settings=[one.setting for one in rule.measured],
        source=rule.source,
        reason=_reason(total, undefined, waits),
    )


class _Window:
    """The window's counts: what a division by each of them is, in each cell."""

    def __init__(self, inputs: Inputs) -> None:
        self.inputs = inputs
        self.total = sum(map(sum, inputs.counts))
        self.longest = max(map(len, inputs.counts))
        self.accumulation = inputs.accumulation or self.longest

    def shared(self, by: str) -> Fraction | None:
        """A count that all cells have in common; None for one of the cell's own."""
        ranks = len(self.inputs.counts)
        common: dict[str, Fraction | int | None] = {
            "N": self.total,
            "P": ranks,
            "K": self.accumulation,
            "K_r": self.longest,
            "P/C": Fraction(ranks, self.inputs.context_parallel),
            "denominator": self.inputs.denominator,
            "loss_factor": self.inputs.loss_factor,
        }
        found = common.get(by)
        return None if found is None else Fraction(found)

    def count(self, by: str, r: int, k: int) -> Fraction:
        shared = self.shared(by)
        if shared is not None:
            return shared
        row = self.inputs.counts[r]
        return Fraction(row[k] if by == "n_rk" else sum(row))

    def weight(self, steps: Iterable[_Step], r: int, k: int) -> Fraction | None:
        """The weight of a token of the cell, None where somebody divides by 0."""
        weight = Fraction(1)
        for step in steps:
            count = self.count(step.by, r, k)
            if not count:
                return None
            weight = weight * count if step.multiplies else weight / count
        return weight


def _rule(inputs: Inputs) -> Rule:
    """The rule of the asked version, else that of the newest release."""
    rules = [rule for rule in RULES if (rule.framework, rule.setting) == (inputs.framework, inputs.setting)]
    return next((rule for rule in rules if rule.release == inputs.version), rules[0])


def _steps(inputs: Inputs, rule: Rule) -> list[_Step]:
    """First what the reader's loss does, if it is the reader's, then the framework's divisions."""
    steps = []
    if rule.yours and inputs.loss_reduction == "mean":
        steps.append(_Step("loss", "n_rk", "forward"))
    if rule.yours and inputs.loss_reduction == "custom":
        steps.append(_Step("loss", "denominator", "forward"))
    if inputs.loss_factor != 1:
        steps.append(_Step("loss", "loss_factor", "forward", multiplies=True))
    for division in rule.divisions:
        summed = division.when == "all_reduce" and inputs.context_reduction == "sum" and inputs.context_parallel > 1
        by = "P/C" if summed and division.by == "P" else division.by
        steps.append(_Step(division.who, by, division.when, division.multiplies))
    return steps


def _shown(step: _Step, window: _Window) -> Step:
    value = window.shared(step.by)
    text = None if value is None else fraction_text(value)
    return Step(who=step.who, by=step.by, value=text, when=step.when, multiplies=step.multiplies)


def _cell(r: int, k: int, n: int, weight: Fraction | None, total: int, waits: bool) -> Cell:
    """One cell; an empty one has no tokens to weight, and a factor exists only where something reaches the update."""
    factor = 1 / (weight * total) if weight and total else None
    return Cell(
        rank=r,
        microstep=k,
        n=n,
        weight=None if weight is None else _out(weight),
        weight_exact=None if weight is None else fraction_text(weight),
        right=1 / total if total else None,
        ratio=None if weight is None or not total else _out(weight * total),
        factor=None if factor is None else _out(factor),
        factor_exact=None if factor is None else fraction_text(factor),
        reason=_reason(total, weight is None, waits),
    )


def _out(value: Fraction) -> float:
    try:
        return float(value)
    except OverflowError:
        en, zh = "leads to a weight or factor beyond float64", "使权重或系数超出 float64 的范围"
        raise InputError(en, zh, field="loss_factor", code="number_range") from None


def _reason(total: int, undefined: bool, waits: bool) -> Reason | None:
    """Why there is no factor: no token at all, a division by 0, or a window that is not stepped."""
    if not total:
        return "zero_count"
    return "empty_cell" if undefined else "not_stepped" if waits else None


def _objective(steps: Iterable[_Step]) -> Objective:
    """What the divisions by a cell's own counts make of the mean, whatever constant factor is left."""
    own = {step.by for step in steps if not step.multiplies}
    return "microbatch_equal" if "n_rk" in own else "replica_equal" if "n_r" in own else "global_token_mean"


def _expression(steps: Iterable[_Step]) -> str:
    """1/(N·w) in the names of the counts, with what cancels left out."""
    powers = Counter({"N": -1})
    for step in steps:
        powers[step.by] += -1 if step.multiplies else 1
    above = [name for name, power in powers.items() for _ in range(power)]
    below = [name for name, power in powers.items() for _ in range(-power)]
    order = ["n_rk", "n_r", "K", "K_r", "P", "P/C", "denominator", "N", "loss_factor"]
    top = "*".join(f"({name})" if "/" in name else name for name in sorted(above, key=order.index)) or "1"
    bottom = "*".join(f"({name})" if "/" in name else name for name in sorted(below, key=order.index))
    return top if not bottom else f"{top}/({bottom})" if len(below) > 1 else f"{top}/{bottom}"


def _experts(inputs: Inputs) -> Experts | None:
    if inputs.expert_parallel == 1:
        return None
    size = inputs.expert_parallel
    return Experts(copies=len(inputs.counts) // size, ratio=float(size), factor=f"1/{size}")
