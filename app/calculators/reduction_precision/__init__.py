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

With `scaling` the values are multiplied by a factor c before they enter, and everything is divided by c again when it
has left the format: c = largest/|amax| (`amax`), so that no rank's own value saturates, or that over P
(`amax_times_ranks`), so that no sum does. All that is told is in the unit of the values; c itself is `scale`. float8
formats end as torch 2.13 casts: float8_e4m3fn saturates at 448, float8_e5m2 becomes infinite beyond 57344. `overflow`
says that a number left the range on the way, also where saturation keeps it finite.

Shapes: P numbers of any one unit; one number stands for all ranks. `norm` takes the same numbers for the elements of a
gradient: its 2-norm with squares kept in the format, in float32, and of ratios to the largest element.
"""

import math
import sys
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, NamedTuple

from pydantic import Field

from samestep.app.calculators.reduction_precision.results import (
    AnyFormatName,
    Entry,
    Format,
    Norm,
    Outcome,
    Placement,
    PlacementName,
    Reach,
    Reduced,
    Result,
    Row,
    Scaling,
    Value,
    View,
)
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
from samestep.app.contract import models
from samestep.app.contract.errors import InputError
from samestep.app.contract.fields import OrBlank, Positive, numbers, whole_number
from samestep.app.contract.limits import MAX_RANKS
from samestep.app.contract.numbers import finite_or_name, fraction_text
from samestep.app.mathematics.float_formats import FLOAT8, FORMATS, FloatFormat

_FORMATS = dict[AnyFormatName, FloatFormat]([*FORMATS.items(), *FLOAT8.items()])

Values = Annotated[tuple[Fraction, ...], numbers(most=MAX_RANKS)]
OptionalRanks = Annotated[Annotated[int, whole_number(1, MAX_RANKS)] | None, OrBlank]


class Inputs(models.Inputs):
    """One value for each rank, or one for all `ranks` of them; `accumulation` is the way of adding that is judged."""

    values: Values = Field(examples=[128])
    ranks: OptionalRanks = Field(default=None, examples=[1024])
    dtype: AnyFormatName = "float16"
    scaling: Scaling = "none"
    predivide: Annotated[Positive | None, OrBlank] = Field(default=None, examples=[32])
    accumulation: Order = "rounded_once"


class Query(Inputs, models.Query):
    """The panel has the fields of the body, and ranks of its own."""

    values: Values = Field(default="128", validate_default=True)
    ranks: OptionalRanks = 1024


def compute(inputs: Inputs) -> Result:
    """Every placement in every order; InputError where the number of ranks is not that of the values, or where there
    is no magnitude to scale by."""
    form, count, unit = _FORMATS[inputs.dtype], _ranks(inputs), _unit(inputs)
    entered = [form.nearest(value * unit.scale) for value in inputs.values]
    held = entered * (count // len(entered))
    mean = exact_sum(held) / count
    factors = _factors(inputs)
    placements = {name: _placement(held, factor, mean, form, unit) for name, factor in factors.items()}
    means: dict[str, Value] = {
        name: placement.reductions[inputs.accumulation].mean for name, placement in placements.items()
    }
    return Result(
        dtype=inputs.dtype,
        ranks=count,
        accumulation=inputs.accumulation,
        predivide=fraction_text(factors["predivided"]),
        scaling=inputs.scaling,
        scale=float(unit.scale),
        scale_exact=fraction_text(unit.scale),
        format=Format(
            digits=form.digits,
            largest=form.largest,
            smallest_normal=form.smallest_normal,
            smallest=form.smallest,
            spacing_at_one=form.spacing_at_one,
        ),
        entry=_entry(inputs, entered, form, unit),
        given_mean=float(sum(inputs.values, Fraction(0)) / len(inputs.values)),
        exact_mean=unit.of(mean),
        exact_mean_exact=fraction_text(mean / unit.scale) if isinstance(mean, Fraction) else None,
        **means,
        placements=placements,
        norm=_norm(norms(held, form, FORMATS["float32"]), held, unit),
    )


def present(inputs: Inputs) -> View:
    """What is shown of a body: all placements side by side."""
    form, unit = _FORMATS[inputs.dtype], _unit(inputs)
    ends = (unit.inside_float64(getattr(form, name)) for name in Reach.model_fields)
    reach = Reach(**dict(zip(Reach.model_fields, ends, strict=True)))
    return View(**dict(compute(inputs)), reach=reach, rows=_rows(inputs))


@dataclass(frozen=True)
class _Unit:
    """What the values were multiplied by before they entered the format, and their own unit again."""

    scale: Fraction

    def of(self, number: Fraction | float, power: int = 1) -> Value:
        """A number of the format in the unit of the values; one beyond float64 is infinite."""
        if isinstance(number, float) and (self.scale == 1 or not math.isfinite(number)):
            return finite_or_name(number)
        try:
            return float(Fraction(number) / self.scale**power)
        except OverflowError:
            return "inf" if number > 0 else "-inf"

    def inside_float64(self, positive: float) -> float:
        """The same for the end of an axis: at least the smallest float64, at most the largest."""
        ends = Fraction(math.ulp(0.0)), Fraction(sys.float_info.max)
        return float(min(max(Fraction(positive) / self.scale, ends[0]), ends[1]))


def _unit(inputs: Inputs) -> _Unit:
    if inputs.scaling == "none":
        return _Unit(Fraction(1))
    largest = max(map(abs, inputs.values))
    if not largest:
        en, zh = "are all 0: there is no magnitude to scale by", "全是 0：没有可以据以缩放的最大值"
        raise InputError(en, zh, field="values", code="zero_count")
    scale = Fraction(_FORMATS[inputs.dtype].largest) / largest
    return _Unit(scale / _ranks(inputs) if inputs.scaling == "amax_times_ranks" else scale)


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


def _entry(inputs: Inputs, entered: list[float], form: FloatFormat, unit: _Unit) -> Entry:
    pairs = [(value * unit.scale, kept) for value, kept in zip(inputs.values, entered, strict=True)]
    each = _ranks(inputs) // len(pairs)
    return Entry(
        largest=unit.of(max(map(abs, entered))),
        changed=each * sum(scaled != kept for scaled, kept in pairs),
        vanished=each * sum(kept == 0 != scaled for scaled, kept in pairs),
        overflow=not all(math.isfinite(form.with_infinity.nearest(scaled)) for scaled, _ in pairs),
    )


def _placement(
    held: list[float], factor: Fraction, exact_mean: Fraction | float, form: FloatFormat, unit: _Unit
) -> Placement:
    summands, last = divided(held, factor, form), len(held) / factor
    endless = divided(held, factor, form.with_infinity) if form.saturates else summands

    def reduced(order: Order) -> Reduced:
        taken = _taken(summands, order, last, form)
        wide = _taken(endless, order, last, form.with_infinity) if form.saturates else taken
        return _reduced(taken, exact_mean, form, unit, overflow=not math.isfinite(wide.mean))

    return Placement(
        first_divisor=fraction_text(factor),
        last_divisor=fraction_text(last),
        summand_largest=unit.of(max(map(abs, summands.values))),
        summands_vanished=summands.vanished,
        sum_unrounded=unit.of(exact_sum(summands.values)),
        reductions={order: reduced(order) for order in ORDERS},
    )


class _Taken(NamedTuple):
    """A sum and a mean in the unit of the format."""

    total: float
    mean: float
    underflow: bool


def _taken(summands: Quotients, order: Order, divisor: Fraction, form: FloatFormat) -> _Taken:
    total = added(summands.values, order, form)
    quotient = divided([total], divisor, form)
    return _Taken(total, quotient.values[0], summands.underflow or quotient.underflow)


def _reduced(taken: _Taken, exact_mean: Fraction | float, form: FloatFormat, unit: _Unit, *, overflow: bool) -> Reduced:
    error: float | None = None
    reason: models.Reason | None = None
    if isinstance(exact_mean, float) or not math.isfinite(taken.mean):
        reason = "non_finite"
    elif exact_mean == 0:
        reason = "zero_reference"
    else:
        error = float(abs(Fraction(taken.mean) - exact_mean) / abs(exact_mean))
    return Reduced(
        sum=unit.of(taken.total),
        mean=unit.of(taken.mean),
        overflow=overflow,
        underflow=taken.underflow,
        relative_error=error,
        outcome=_outcome(taken.mean, exact_mean, form),
        reason=reason,
    )


def _outcome(mean: float, exact_mean: Fraction | float, form: FloatFormat) -> Outcome:
    if isinstance(exact_mean, float) or not math.isfinite(mean):
        return "overflow"
    if mean == 0 and form.nearest(exact_mean):
        return "vanished"
    return "right" if abs(Fraction(mean) - exact_mean) <= form.spacing(exact_mean) else "off"


def _norm(found: Norms, held: list[float], unit: _Unit) -> Norm:
    return Norm(
        largest_square=unit.of(found.largest_square, 2),
        in_dtype=unit.of(found.plain),
        in_float32=unit.of(found.in_float32),
        divided_first=unit.of(found.divided_first),
        exact=unit.of(math.hypot(*held)),
    )


def _rows(inputs: Inputs) -> list[Row]:
    form, each, unit = _FORMATS[inputs.dtype], _ranks(inputs) // len(inputs.values), _unit(inputs)
    counts = Counter(inputs.values)
    held = [form.nearest(value * unit.scale) for value in counts]
    columns = {name: divided(held, factor, form).values for name, factor in _factors(inputs).items()}
    return [
        Row(
            given=float(value),
            count=count * each,
            held=unit.of(held[i]),
            **{name: unit.of(column[i]) for name, column in columns.items()},
        )
        for i, (value, count) in enumerate(counts.items())
    ]
