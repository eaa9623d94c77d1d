"""What a fingerprint answers: the ratios, the causes by fit, and what would settle it."""

from typing import Literal

from pydantic import Field

from samestep.app.calculators.ratio_fingerprint.hypotheses import On
from samestep.app.contract.models import Reason, Result as ResultBase, Table

Next = Literal[
    "reduction_sums", "reduction_averages", "accumulation_sums", "divided_twice", "both_sum", "both_divide",
    "loss_is_a_sum", "loss_is_a_sum_averaged", "count_divided_twice", "scaled_by_ranks_twice",
    "divided_by_ranks_twice", "two_factors", "logged_loss", "replica_means", "microbatch_means", "sample_weights",
    "which_microbatch", "which_samples", "rescaled_gradient", "reduction_missing", "remote_gradient",
    "norm_of_shards", "norm_of_copies", "sign_of_loss", "capture_step",
]  # fmt: skip


Number = Literal["gradient", "gradient_norm", "loss", "per_rank", "norm_per_rank", "replicated_norm", "counts"]


class Ratios(ResultBase):
    """Observed divided by reference, null where either is missing or the reference 0."""

    loss: float | None
    gradient_norm: float | None
    gradient: float | None


class Cause(ResultBase):
    """One explanation. `code` is its first fault, `codes` all of them; `factor` an expression in P, K and N, null where
    no factor describes it, and `on` what the factor is seen on. `place` is the rank, or the cell by rank and microstep;
    `places` are all of them, one or several. `base` is what a rescaled gradient was divided by each time.

    `predicted` is the ratio that it predicts, beside it the values; `share` is the free number of a fault that explains
    any value (see `Ask`). `error` is relative, `fit` the share of the evidence, which add up to 1 with the rest.
    """

    code: str
    codes: list[str]
    factor: str | None
    on: On | None
    place: list[int]
    places: list[list[int]]
    base: float | None
    form: str
    predicted: float | None
    predicted_loss: float | None
    predicted_norm: float | None
    predicted_gradient: list[float] | None
    share: float | None
    error: float | None
    fit: float
    tied: bool
    next: Next


class Ask(ResultBase):
    """What would settle it: a further number, the nearest coprime `P` and `K` that tell the tied causes apart, or a
    window of unequal (or just other) counts."""

    number: Number | None
    P: int | None
    K: int | None
    counts: Literal["unequal", "other"] | None


class Entry(ResultBase):
    """One gradient entry."""

    reference: float
    observed: float
    ratio: float | None
    reason: Reason | None


class Mark(ResultBase):
    """A factor and its value."""

    factor: str
    value: float


class Result(ResultBase):
    """`same`: the right update explains the numbers best. `cannot_tell`: so do other explanations, or none does.

    `agreed_factor` is the factor that all tied explanations share. `consistent` says whether the reference is what the
    ranks or cells add up to. `effective_weights` are what the cells really weighed, null where their gradients do not
    determine it; the fractions also where a weight is none of a small denominator.
    """

    defined: bool
    ratio: float | None
    residual: float | None
    ratios: Ratios
    same: bool
    cannot_tell: bool
    agreed_factor: str | None
    causes: list[Cause]
    ask: Ask | None
    consistent: bool | None
    count: float | None = Field(description="N, where the counts are known")
    effective_weights: list[list[float]] | None
    effective_weights_exact: list[list[str]] | None
    entries: list[Entry] | None
    scale: list[Mark] = Field(description="the single factors at these P, K and N, for the figure")
    reason: Reason | None

    def tables(self) -> list[Table]:
        """One row a cause, then the ratios."""
        header = ("code", "codes", "factor", "on", "places", "base", "predicted", "error", "fit", "tied", "next")
        rows = [
            (c.code, "+".join(c.codes), c.factor, c.on, places, c.base, c.predicted, c.error, c.fit, c.tied, c.next)
            for c in self.causes
            for places in [" ".join("-".join(map(str, place)) for place in c.places)]
        ]
        ratios = [(name, value) for name, value in self.ratios]
        tables = [Table(header=header, rows=rows), Table(header=("ratio_of", "value"), rows=ratios)]
        if self.effective_weights is not None:
            weights = [(r, k, w) for r, row in enumerate(self.effective_weights) for k, w in enumerate(row)]
            tables.append(Table(header=("rank", "microstep", "effective_weight"), rows=weights))
        return tables
