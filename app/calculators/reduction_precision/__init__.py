"""A mean over ranks whose every step stays in one number format: divide before the sum, after it, or a part of each.

Words and symbols: rank r of P holds x_r (`values`, read exactly and rounded to `dtype` where it enters). With a factor
φ before the sum and P/φ after it,

    y_r = round(x_r / φ)        s = sum of the y_r        mean = round(s / (P/φ))

    sum_then_divide   φ = 1        the sum may overflow
    divide_then_sum   φ = P        the summands may underflow
    predivided        φ = `predivide`, by default the smallest power of two f with f ≥ P/f, or the first that does not
                      divide P: `_get_gradient_divide_factors` of FSDP2, torch 2.13, and `gradient_predivide_factor` of
                      Horovod for a number of one's own

Three ways to take the sum (`accumulation`, see `sums`): the exact one rounded once, rank after rank as in
a ring, or in pairs as in a tree; the last two round after every addition. What a network does is one of these or
between them.

`exact_mean` is the exact mean of what the ranks hold, (Σ x_r)/P after rounding on entry: errors are the reduction's
own. `given_mean` is that of the numbers as typed. A mean is `right` when it is no farther from the exact one than
neighbours of the format are from each other.

Shapes: P numbers of any one unit; one number stands for all ranks. `norm` takes the same numbers for the elements of a
gradient: its 2-norm with squares kept in the format, in float32, and of ratios to the largest element.
"""

import math
from collections import Counter
from fractions import Fraction
from typing import Annotated, Literal

from pydantic import Field

from samestep.app.calculators.reduction_precision.sums import (
    ORDERS,
    Norms,
    Order,
    Quotients,
    added,
    divided,
    exact_sum,
    norms,
)
from samestep.app.contract.errors import InputError
from samestep.app.contract.fields import OrBlank, Positive, numbers, whole_number
from samestep.app.contract.limits import MAX_RANKS
from samestep.app.contract.models import (
    Inputs as InputsBase,
    Query as QueryBase,
    Reason,
    Result as ResultBase,
    Table,
)
from samestep.app.contract.numbers import NonFinite, finite_or_name, fraction_text
from samestep.app.mathematics.float_formats import FORMATS, FloatFormat, FormatName

Value = float | NonFinite
PlacementName = Literal["sum_then_divide", "divide_then_sum", "predivided"]
Outcome = Literal["right", "off", "vanished", "overflow"]


Values = Annotated[tuple[Fraction, ...], numbers(most=MAX_RANKS)]
OptionalRanks = Annotated[Annotated[int, whole_number(1, MAX_RANKS)] | None, OrBlank]


class Inputs(InputsBase):
    """One value for each rank, or one for all `ranks` of them; `accumulation` is the way of adding that is judged."""

    values: Values = Field(examples=[128])
    ranks: OptionalRanks = Field(default=None, examples=[1024])
    dtype: FormatName = "float16"
    predivide: Annotated[Positive | None, OrBlank] = Field(default=None, examples=[32])
    accumulation: Order = "rounded_once"


class Query(Inputs, QueryBase):
    """The panel has the fields of the body, and ranks of its own."""

    values: Values = Field(default="128", validate_default=True)
    ranks: OptionalRanks = 1024


class Format(ResultBase):
    """The range and the fineness of the number format."""

    digits: int
    largest: float
    smallest_normal: float
    smallest: float
    spacing_at_one: float


class Entry(ResultBase):
    """What rounding to the format did to the numbers as typed, before anything was reduced; and their largest
    magnitude after it."""

    largest: Value
    changed: int
    vanished: int
    overflow: bool


class Reduced(ResultBase):
    """The sum and the mean that one way of adding arrives at. `relative_error` is null where the mean is non-finite or
    the exact mean is 0."""

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

    dtype: FormatName
    ranks: int
    accumulation: Order
    predivide: str
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


class View(Result):
    """What the panel shows: one row for each distinct value."""

    rows: list[Row]

    def tables(self) -> list[Table]:
        rows = [tuple(value for _, value in row) for row in self.rows]
        return [*super().tables(), Table(header=tuple(Row.model_fields), rows=rows)]


def compute(inputs: Inputs) -> Result:
    """Every placement in every order; InputError where the number of ranks is not that of the values."""
    form, count = FORMATS[inputs.dtype], _ranks(inputs)
    entered = [form.nearest(value) for value in inputs.values]
    held = entered * (count // len(entered))
    mean = exact_sum(held) / count
    factors = _factors(inputs)
    placements = {name: _placement(held, factor, mean, form) for name, factor in factors.items()}
    means: dict[str, Value] = {
        name: placement.reductions[inputs.accumulation].mean for name, placement in placements.items()
    }
    return Result(
        dtype=inputs.dtype,
        ranks=count,
        accumulation=inputs.accumulation,
        predivide=fraction_text(factors["predivided"]),
        format=Format(
            digits=form.digits,
            largest=form.largest,
            smallest_normal=form.smallest_normal,
            smallest=form.smallest,
            spacing_at_one=form.spacing_at_one,
        ),
        entry=_entry(inputs, entered),
        given_mean=float(sum(inputs.values, Fraction(0)) / len(inputs.values)),
        exact_mean=finite_or_name(float(mean)),
        exact_mean_exact=fraction_text(mean) if isinstance(mean, Fraction) else None,
        **means,
        placements=placements,
        norm=_norm(norms(held, form, FORMATS["float32"]), held),
    )


def present(inputs: Inputs) -> View:
    """What is shown of a body: all placements side by side."""
    return View(**dict(compute(inputs)), rows=_rows(inputs))


def _ranks(inputs: Inputs) -> int:
    """P: a single value stands for all ranks."""
    count = len(inputs.values)
    if inputs.ranks is None or count in (1, inputs.ranks):
        return inputs.ranks or count
    en, zh = f"must be {count}, the number of values, or blank", f"应为值的个数 {count}，或留空"
    raise InputError(en, zh, field="ranks", code="shape_mismatch")


def _factors(inputs: Inputs) -> dict[PlacementName, Fraction]:
    """What each placement divides by before the sum."""
    ranks = _ranks(inputs)
    predivide = _fsdp_factor(ranks) if inputs.predivide is None else inputs.predivide
    return {"sum_then_divide": Fraction(1), "divide_then_sum": Fraction(ranks), "predivided": predivide}


def _fsdp_factor(ranks: int) -> Fraction:
    """About √P: doubled while it divides P and P over it is larger."""
    factor = 1
    while ranks % factor == 0 and ranks / factor > factor:
        factor *= 2
    return Fraction(factor)


def _entry(inputs: Inputs, entered: list[float]) -> Entry:
    pairs = list(zip(inputs.values, entered, strict=True))
    each = _ranks(inputs) // len(pairs)
    return Entry(
        largest=finite_or_name(max(map(abs, entered))),
        changed=each * sum(typed != kept for typed, kept in pairs),
        vanished=each * sum(kept == 0 != typed for typed, kept in pairs),
        overflow=not all(map(math.isfinite, entered)),
    )


def _placement(held: list[float], factor: Fraction, exact_mean: Fraction | float, form: FloatFormat) -> Placement:
    summands, last = divided(held, factor, form), len(held) / factor
    unrounded = exact_sum(summands.values)
    return Placement(
        first_divisor=fraction_text(factor),
        last_divisor=fraction_text(last),
        summand_largest=finite_or_name(max(map(abs, summands.values))),
        summands_vanished=summands.vanished,
        sum_unrounded=_as_value(unrounded),
        reductions={order: _reduced(summands, order, last, exact_mean, form) for order in ORDERS},
    )


def _as_value(number: Fraction | float) -> Value:
    """A sum of P float64 numbers may itself be beyond float64."""
    try:
        return finite_or_name(float(number))
    except OverflowError:
        return "inf" if number > 0 else "-inf"


def _reduced(
    summands: Quotients, order: Order, divisor: Fraction, exact_mean: Fraction | float, form: FloatFormat
) -> Reduced:
    total = added(summands.values, order, form)
    quotient = divided([total], divisor, form)
    (mean,) = quotient.values
    error: float | None = None
    reason: Reason | None = None
    if isinstance(exact_mean, float) or not math.isfinite(mean):
        reason = "non_finite"
    elif exact_mean == 0:
        reason = "zero_reference"
    else:
        error = float(abs(Fraction(mean) - exact_mean) / abs(exact_mean))
    return Reduced(
        sum=finite_or_name(total),
        mean=finite_or_name(mean),
        overflow=not math.isfinite(mean),
        underflow=summands.underflow or quotient.underflow,
        relative_error=error,
        outcome=_outcome(mean, exact_mean, form),
        reason=reason,
    )


def _outcome(mean: float, exact_mean: Fraction | float, form: FloatFormat) -> Outcome:
    if isinstance(exact_mean, float) or not math.isfinite(mean):
        return "overflow"
    if mean == 0 and form.nearest(exact_mean):
        return "vanished"
    return "right" if abs(Fraction(mean) - exact_mean) <= form.spacing(exact_mean) else "off"


def _norm(found: Norms, held: list[float]) -> Norm:
    return Norm(
        largest_square=finite_or_name(found.largest_square),
        in_dtype=finite_or_name(found.plain),
        in_float32=finite_or_name(found.in_float32),
        divided_first=finite_or_name(found.divided_first),
        exact=finite_or_name(math.hypot(*held)),
    )


def _rows(inputs: Inputs) -> list[Row]:
    form, each = FORMATS[inputs.dtype], _ranks(inputs) // len(inputs.values)
    counts = Counter(inputs.values)
    held = list(map(form.nearest, counts))
    columns = {name: divided(held, factor, form).values for name, factor in _factors(inputs).items()}
    return [
        Row(
            given=float(value),
            count=count * each,
            held=finite_or_name(held[i]),
            **{name: finite_or_name(column[i]) for name, column in columns.items()},
        )
        for i, (value, count) in enumerate(counts.items())
    ]
