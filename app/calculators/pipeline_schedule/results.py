"""What a pipeline schedule answers, as the answer has it."""

from typing import Literal

from samestep.app.calculators.pipeline_schedule.timing import ScheduleName
from samestep.app.calculators.pipeline_schedule.weights import SchemeName
from samestep.app.contract.models import Reason, Result as ResultBase, Table

TiedName = Literal["summed", "not_summed", "averaged"]


class Reference(ResultBase):
    """The gradient of the mean over all items, undefined (`zero_count`) where there is none."""

    defined: bool
    reason: Reason | None
    weights: list[list[float]] | None
    weights_exact: list[list[str]] | None
    grad: list[float] | None
    grad_exact: list[str] | None


class SchemeResult(ResultBase):
    """What each microbatch's mean gradient weighs (null above MAX_LISTED_CELLS), and what they add up to.

    `grad` is null where a microbatch without items weighs something, for it has no mean (`empty_cell`). The weights
    are right if they are those of the reference; `uniform_factor` is their common multiple of them, null without one;
    the ratio is that of plain numbers, null (`zero_reference`) where the reference is 0. Fractions are null above
    MAX_EXACT_CELLS numbers.
    """

    defined: bool
    reason: Reason | None
    weights: list[list[float]] | None
    weights_exact: list[list[str]] | None
    total_weight: float | None
    total_weight_exact: str | None
    grad: list[float] | None
    grad_exact: list[str] | None
    uniform_factor: float | None
    uniform_factor_exact: str | None
    matches_reference: bool
    ratio_to_reference: float | None


class Timing(ResultBase):
    """The first call: every stage's work in order (`F0`, `B0`, …; null above MAX_LISTED_CELLS), how many microbatches'
    activations it keeps at most, and the share of the call for which it is idle."""

    order: list[list[str]] | None
    in_flight: list[int]
    bubble: float
    bubble_exact: str


class TiedResult(ResultBase):
    """A weight that two stages hold, after one step of SGD; `gradient` is null where they step by different ones."""

    gradient: float | None
    gradient_exact: str | None
    first_after: float
    first_after_exact: str
    last_after: float
    last_after_exact: str
    same: bool


class Result(ResultBase):
    """The weights of nine ways to accumulate, the first call's timing, and the tied weight (null where not given)."""

    calls: int
    microbatches: int
    items: float
    reference: Reference
    schemes: dict[SchemeName, SchemeResult]
    timing: Timing
    tied: dict[TiedName, TiedResult] | None

    def tables(self) -> list[Table]:
        """One row a scheme, then the weights, the first call's timing, the tied weight."""
        fields = ("defined", "total_weight", "uniform_factor", "matches_reference", "ratio_to_reference", "reason")
        schemes = [
            (name, *(getattr(scheme, field) for field in fields), *(scheme.grad or ()))
            for name, scheme in self.schemes.items()
        ]
        width = max(len(scheme.grad or ()) for scheme in self.schemes.values())
        gradient = tuple(f"grad_{i}" for i in range(width))
        padded = [(*row, *[None] * (1 + len(fields) + width - len(row))) for row in schemes]
        stages = [
            (stage, kept, None if self.timing.order is None else " ".join(self.timing.order[stage]))
            for stage, kept in enumerate(self.timing.in_flight)
        ]
        tables = [
            Table(header=("scheme", *fields, *gradient), rows=padded),
            Table(header=("stage", "in_flight", "order"), rows=stages),
        ]
        if self.reference.weights is not None:
            columns = [scheme.weights or [] for scheme in self.schemes.values()]
            weights = [
                (k, j, weight, *(column[k][j] if column else None for column in columns))
                for k, row in enumerate(self.reference.weights)
                for j, weight in enumerate(row)
            ]
            tables.append(Table(header=("call", "microbatch", "reference", *self.schemes), rows=weights))
        if self.tied is not None:
            tied = [(name, *(value for _, value in one)) for name, one in self.tied.items()]
            tables.append(Table(header=("tied", *TiedResult.model_fields), rows=tied))
        return tables


class Bar(ResultBase):
    """One microbatch's work on a stage as it is drawn, in units of a forward."""

    kind: Literal["F", "B"]
    microbatch: int
    start: int
    length: int


class View(Result):
    """What the panel shows: one scheme, and the first call in time (null where it is too large to draw)."""

    selected: SchemeName
    current: SchemeResult
    schedule: ScheduleName
    stages: int
    first_call: int
    stages_shown: int
    grid: list[list[Bar]] | None
