"""A mean over ranks by every placement of the division and way of adding, as the answer has it."""

from typing import Literal

from pydantic import Field

from samestep.app.calculators.reduction_precision.sums import Order
from samestep.app.contract.models import Reason, Result as ResultBase, Table
from samestep.app.contract.numbers import NonFinite
from samestep.app.mathematics.float_formats import Float8Name, FormatName

Value = float | NonFinite
PlacementName = Literal["sum_then_divide", "divide_then_sum", "predivided"]
Outcome = Literal["right", "off", "vanished", "overflow"]
AnyFormatName = Literal[FormatName, Float8Name]
Scaling = Literal["none", "amax", "amax_times_ranks"]


class Format(ResultBase):
    """The range and the fineness of the number format."""

    digits: int
    largest: float
    smallest_normal: float
    smallest: float
    spacing_at_one: float


class Entry(ResultBase):
    """What rounding to the format did to the numbers as typed, before anything was reduced; and their largest
    magnitude after it. `overflow`: one is beyond the format, infinite or saturated."""

    largest: Value
    changed: int
    vanished: int
    overflow: bool


class Reduced(ResultBase):
    """The sum and the mean that one way of adding arrives at. `relative_error` is null where the mean is non-finite or
    the exact mean is 0; `overflow` is also true of a sum or mean that saturated."""

    sum: Value
    mean: Value
    overflow: bool
    underflow: bool
    relative_error: float | None
    outcome: Outcome
    reason: Reason | None


class Placement(ResultBase):
    """One place of the division: divisors (exact), what the summands become, the sum they have without rounding."""

    first_divisor: str
    last_divisor: str
    summand_largest: Value = Field(description="largest magnitude of a summand")
    summands_vanished: int
    sum_unrounded: Value
    reductions: dict[Order, Reduced]


class Norm(ResultBase):
    """The 2-norm of the values, by four ways."""

    largest_square: Value
    in_dtype: Value
    in_float32: Value
    divided_first: Value
    exact: Value


class Result(ResultBase):
    """Three places of the division × three ways of adding. The means by the chosen `accumulation` stand under the names
    of their placements; `predivide` is the factor used."""

    dtype: AnyFormatName
    ranks: int
    accumulation: Order
    predivide: str
    scaling: Scaling
    scale: float
    scale_exact: str
    format: Format
    entry: Entry
    given_mean: float
    exact_mean: Value
    exact_mean_exact: str | None
    sum_then_divide: Value
    divide_then_sum: Value
    predivided: Value
    placements: dict[PlacementName, Placement]
    norm: Norm

    def tables(self) -> list[Table]:
        """One row a placement and way of adding, then the norms."""
        rows = [
            (name, order, placement.first_divisor, placement.last_divisor, *(value for _, value in reduced))
            for name, placement in self.placements.items()
            for order, reduced in placement.reductions.items()
        ]
        header = ("placement", "accumulation", "first_divisor", "last_divisor", *Reduced.model_fields)
        norm_rows = [tuple(value for _, value in self.norm)]
        return [Table(header=header, rows=rows), Table(header=tuple(Norm.model_fields), rows=norm_rows)]


class Row(ResultBase):
    """A value that `count` ranks hold, and the summand that each placement makes of it."""

    given: float
    count: int
    held: Value
    sum_then_divide: Value
    divide_then_sum: Value
    predivided: Value


class Reach(ResultBase):
    """The range of the format in the unit of the values, as far as float64 holds it."""

    smallest: float
    smallest_normal: float
    largest: float


class View(Result):
    """What the panel shows: one row for each distinct value, and the range of the format."""

    reach: Reach
    rows: list[Row]

    def tables(self) -> list[Table]:
        rows = [tuple(value for _, value in row) for row in self.rows]
        return [*super().tables(), Table(header=tuple(Row.model_fields), rows=rows)]
