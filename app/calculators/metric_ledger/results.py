"""An evaluation's metrics by every way to take them, as the answer has it."""

from typing import Literal, get_args

from samestep.app.contract.models import Reason, Result as ResultBase, Table
from samestep.app.contract.numbers import NonFinite

Metric = Literal["loss", "perplexity", "accuracy", "f1"]
LossScheme = Literal[
    "token_mean",
    "token_mean_with_repeats",
    "mean_of_batch_means",
    "mean_of_rank_means",
    "mean_of_rank_batch_means",
    "sum_of_rank_means",
    "sum_of_batch_means",
    "rank_zero",
]
PerplexityScheme = Literal[
    "perplexity_of_token_mean",
    "perplexity_of_batch_mean",
    "perplexity_of_rank_mean",
    "mean_of_batch_perplexities",
    "mean_of_rank_perplexities",
    "token_weighted_perplexity",
]
AccuracyScheme = Literal[
    "accuracy_pooled", "accuracy_with_repeats", "accuracy_mean_of_batches", "accuracy_mean_of_ranks"
]
F1Scheme = Literal["f1_pooled", "f1_mean_of_batches", "f1_mean_of_ranks"]
SchemeName = Literal[LossScheme, PerplexityScheme, AccuracyScheme, F1Scheme]

METRICS: dict[Metric, tuple[SchemeName, ...]] = {
    "loss": get_args(LossScheme),
    "perplexity": get_args(PerplexityScheme),
    "accuracy": get_args(AccuracyScheme),
    "f1": get_args(F1Scheme),
}
"""The schemes of each metric, the right one first."""


class SchemeResult(ResultBase):
    """One way to take one metric, beside the right one.

    `ratio_to_reference` is null where either is undefined or the right one is 0 (`zero_reference`); `over_optimised`,
    of losses, is the ratio to the loss whose gradient is followed. Perplexities have no exact value.
    """

    metric: Metric
    defined: bool
    reason: Reason | None
    matches_reference: bool
    value: float | None
    value_exact: str | None
    ratio_to_reference: float | None
    over_optimised: float | None


class Result(ResultBase):
    """All ways to take the metrics whose numbers are given (loss and perplexity always). `count` are the new items,
    `log_perplexity` their mean loss."""

    count: int
    repeated: int
    log_perplexity: float | None
    schemes: dict[SchemeName, SchemeResult]

    def tables(self) -> list[Table]:
        """One row a scheme."""
        header = tuple(SchemeResult.model_fields)
        rows = [(name, *(value for _, value in scheme)) for name, scheme in self.schemes.items()]
        return [Table(header=("scheme", *header), rows=rows)]


class RankRow(ResultBase):
    """What one rank would report by itself, repeats among its items; null where it has none."""

    rank: int
    batches: int
    items: int
    repeats: int
    loss: float | None
    perplexity: float | NonFinite | None
    accuracy: float | None
    f1: float | None


class Batch(ResultBase):
    """One batch as a box: n new items of the mean loss."""

    rank: int
    batch: int
    n: int
    loss: float


class View(Result):
    """What the panel shows: one of the schemes, the metrics that the reader has given, what single ranks have, and the
    first batches where losses are given."""

    selected: SchemeName
    current: SchemeResult
    optimised: LossScheme
    metrics: list[Metric]
    ranks: int
    batches: int
    rows: list[RankRow]
    boxes: list[Batch]

    def tables(self) -> list[Table]:
        rows = [tuple(value for _, value in row) for row in self.rows]
        return [*super().tables(), Table(header=tuple(RankRow.model_fields), rows=rows)]
