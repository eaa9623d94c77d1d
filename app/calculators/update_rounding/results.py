"""What comes of rounded weights, accumulated gradients and 8-bit scales, as the answer has it."""

from typing import Literal

from samestep.app.calculators.update_rounding.scaling import (
    ScaleName,
)
from samestep.app.contract import models
from samestep.app.contract.numbers import NonFinite
from samestep.app.mathematics.float_formats import Float8Name

SchemeName = Literal["in_dtype", "float32_master", "stochastic"]
StoredFormat = Literal["bfloat16", "float16", "float32"]
Value = float | NonFinite


class WeightScheme(models.Result):
    """One way to keep the weight.

    `after` is what the format holds at the end (`expected`, of the stochastic way, on average), right if it is the
    format's number nearest to the exact weight. `stopped_after_steps` is null where the last step still moved it
    (`not_reached`), `moved_share` the part of the whole way steps·u that was gone, null where that is 0. The four of
    the first step are those of the stochastic way.
    """

    defined: bool
    reason: models.Reason | None
    matches_reference: bool
    after: Value | None = None
    after_exact: str | None = None
    ratio_to_reference: float | None = None
    moved_share: float | None = None
    stopped_after_steps: int | None = None
    master: Value | None = None
    master_exact: str | None = None
    expected: float | None = None
    expected_exact: str | None = None
    first_lower: Value | None = None
    first_lower_exact: str | None = None
    first_upper: Value | None = None
    first_upper_exact: str | None = None
    first_upper_probability: float | None = None
    first_upper_probability_exact: str | None = None
    first_variance: float | None = None
    first_variance_exact: str | None = None


class Weight(models.Result):
    """The weight as the format holds it at the start, the distance to its neighbours there (the larger, if they
    differ), where exact arithmetic would take it, and the three ways to keep it."""

    start: float
    start_exact: str
    spacing: float
    exact: float
    exact_exact: str
    schemes: dict[SchemeName, WeightScheme]


class Accumulation(models.Result):
    """The sum of the gradients: exact, rounded to the format after each addition, to float32, and that stored in the
    format at the end. `lost` is what the first of them misses."""

    exact: float
    exact_exact: str
    in_dtype: Value
    in_dtype_exact: str | None
    in_float32: Value
    in_float32_exact: str | None
    in_float32_stored: Value
    in_float32_stored_exact: str | None
    lost: float | None
    reason: models.Reason | None


class ScaleScheme(models.Result):
    """The scale of every rank, the largest over the smallest, what each magnitude is kept as, how many saturate; lists
    are null above MAX_LISTED_CELLS cells, their fractions above MAX_EXACT_CELLS. Undefined (`zero_count`) where a scale
    would divide by a largest magnitude of 0."""

    defined: bool
    reason: models.Reason | None
    matches_reference: bool
    scales: list[float] | None = None
    scales_exact: list[str] | None = None
    scale_spread: float | None = None
    scale_spread_exact: str | None = None
    largest_kept: list[list[float]] | None = None
    largest_kept_exact: list[list[str]] | None = None
    saturated: int | None = None


class Float8(models.Result):
    """The format's largest number, and four ways to scale by it."""

    largest: float
    schemes: dict[ScaleName, ScaleScheme]


class Result(models.Result):
    """Three blocks, each null where its input is blank."""

    weight: Weight | None
    accumulation: Accumulation | None
    fp8: Float8 | None

    def tables(self) -> list[models.Table]:
        """The ways to keep the weight, the sums, the scales."""
        tables = []
        if self.weight is not None:
            rows = [(name, *(value for _, value in scheme)) for name, scheme in self.weight.schemes.items()]
            tables.append(models.Table(header=("scheme", *WeightScheme.model_fields), rows=rows))
        if self.accumulation is not None:
            header = tuple(Accumulation.model_fields)
            tables.append(models.Table(header=header, rows=[tuple(value for _, value in self.accumulation)]))
        if self.fp8 is not None:
            cells = [
                (name, r, scheme.scales[r], k, kept)
                for name, scheme in self.fp8.schemes.items()
                if scheme.scales is not None
                for r, row in enumerate(scheme.largest_kept or [])
                for k, kept in enumerate(row)
            ]
            tables.append(models.Table(header=("scheme", "rank", "scale", "microstep", "largest_kept"), rows=cells))
        return tables


class View(Result):
    """What the panel shows: one of the ways to keep the weight (null without one), and the magnitudes as given."""

    selected: SchemeName
    current: WeightScheme | None
    dtype: StoredFormat
    steps: int
    float8: Float8Name
    amax: list[list[float]] | None
