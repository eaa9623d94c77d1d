"""What rounding takes from an update, an accumulated gradient and an 8-bit scale.

Words and symbols: a weight w, stored in a format of `dtype`, is moved `steps` times by u (`update`, exact).

    in_dtype         w ← round(w + u) in the format, every time
    float32_master   the same in float32, from the same start; the result rounded once to the format
    stochastic       rounded up with the probability that makes w + u the expectation; so after all steps w + steps·u

`gradients` are added one after the other, each sum rounded: in the format, and in float32 (and then stored in the
format). `amax` are largest magnitudes by rank and microstep, see `scaling`. Rounding is to nearest, ties to even, once
a step, from exact values (IEEE 754; see `float_formats`). A format's overflow is the string `inf` and ends its block.
Fractions are exact, beside them their nearest float64. Not modelled: momentum, updates that change with the weight.
"""

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Annotated, Any

import numpy as np
from pydantic import Field, model_validator

from samestep.app.calculators.update_rounding.results import (
    Accumulation,
    Float8,
    Result,
    ScaleScheme,
    SchemeName,
    StoredFormat,
    View,
    Weight,
    WeightScheme,
)
from samestep.app.calculators.update_rounding.scaling import (
    Amax,
    chosen_amax,
    kept_exactly,
    kept_in_bulk,
)
from samestep.app.calculators.update_rounding.weights import accumulated, moved, neighbours
from samestep.app.contract import models
from samestep.app.contract.errors import InputError
from samestep.app.contract.fields import (
    OptionalRowsText,
    OrBlank,
    RawMatrix,
    Real,
    numbers,
    whole_number,
)
from samestep.app.contract.limits import MAX_CELLS, MAX_EXACT_CELLS, MAX_LISTED_CELLS, MAX_RANKS
from samestep.app.contract.numbers import as_json, exact, finite_or_name, fraction_text, not_negative
from samestep.app.mathematics.float_formats import FLOAT8, FORMATS, Float8Name, FloatFormat

MAX_STEPS = 10**6
MAX_MARGIN = 64
MAX_GRADIENTS = 10_000
_SINGLE = FORMATS["float32"]

Steps = Annotated[int, whole_number(1, MAX_STEPS)]
Margin = Annotated[int, whole_number(-MAX_MARGIN, MAX_MARGIN)]
Gradients = Annotated[tuple[Fraction, ...] | None, numbers().optional()]
OptionalReal = Annotated[Real | None, OrBlank]

_MAGNITUDES: list[list[int | float | str]] = [[12, 3, 5, 2]]


class Inputs(models.Inputs):
    """A weight and its update, gradients that are accumulated, magnitudes by rank and microstep; a blank one is left
    out of the answer."""

    weight: OptionalReal = Field(default=Fraction(1), examples=[1])
    update: OptionalReal = Field(default=Fraction(-1, 1000), examples=["-0.001"])
    steps: Steps = 100
    dtype: StoredFormat = "bfloat16"
    gradients: Gradients = Field(default=(256, "1/2", "1/2"), validate_default=True, examples=[[256, 0.5, 0.5]])
    amax: Annotated[RawMatrix | None, OrBlank] = Field(default=_MAGNITUDES, examples=[[[12, 3, 5, 2]]])
    fp8: Float8Name = "float8_e4m3fn"
    margin: Margin = 0

    @model_validator(mode="after")
    def _fits(self) -> "Inputs":
        if self.weight is not None and self.update is None:
            raise InputError("is blank: the weight needs one", "为空：权重需要一个更新量", field="update", code="blank")
        if self.gradients is not None and len(self.gradients) > MAX_GRADIENTS:
            en, zh = f"has more than {MAX_GRADIENTS:,} entries", f"超过 {MAX_GRADIENTS:,} 项"
            raise InputError(en, zh, field="gradients", code="too_long")
        return self


class Query(models.Query):
    """The panel: the fields of the body, magnitudes in rows, one of the ways to keep a weight."""

    weight: OptionalReal = Fraction(1)
    update: OptionalReal = Fraction(-1, 1000)
    steps: Steps = 100
    dtype: StoredFormat = "bfloat16"
    gradients: Gradients = Field(default="256,0.5,0.5", validate_default=True)
    amax: OptionalRowsText = Field(default="12,3,5,2", validate_default=True)
    fp8: Float8Name = "float8_e4m3fn"
    margin: Margin = 0
    scheme: SchemeName = "in_dtype"

    def inputs(self) -> Inputs:
        """The body that these fields stand for."""
        fields: dict[str, Any] = {name: getattr(self, name) for name in Inputs.model_fields}
        if self.amax is not None:
            fields["amax"] = [[as_json(cell) for cell in row] for row in self.amax]
        return Inputs(**fields)


def compute(inputs: Inputs) -> Result:
    """Every block that has an input; InputError where a number leaves float64."""
    form = FORMATS[inputs.dtype]
    return Result(
        weight=None
        if inputs.weight is None or inputs.update is None
        else _weight(inputs, inputs.weight, inputs.update),
        accumulation=None if inputs.gradients is None else _accumulation(inputs.gradients, form),
        fp8=None if inputs.amax is None else _float8(_magnitudes(inputs.amax), inputs),
    )


def present(inputs: Inputs, scheme: str | None = None) -> View:
    """What is shown of a body, with one of the ways to keep a weight selected: the first, unless another is named."""
    result = compute(inputs)
    names: tuple[SchemeName, ...] = ("in_dtype", "float32_master", "stochastic")
    selected = models.chosen(names, scheme)
    given = None if inputs.amax is None else _magnitudes(inputs.amax)
    return View(
        **dict(result),
        selected=selected,
        current=None if result.weight is None else result.weight.schemes[selected],
        dtype=inputs.dtype,
        steps=inputs.steps,
        float8=inputs.fp8,
        amax=None if given is None else [[float(cell) for cell in row[:8]] for row in given[:8]],
    )


def _in_float64(value: Fraction, field: str) -> float:
    try:
        return float(value)
    except OverflowError:
        en, zh = "makes a number leave float64", "使结果超出 float64 的范围"
        raise InputError(en, zh, field=field, code="number_range") from None


def _fraction(value: float) -> str | None:
    return fraction_text(Fraction(value)) if math.isfinite(value) else None


def _held(**values: float) -> dict[str, Any]:
    """Numbers as a format holds them, each with its fraction where it is finite."""
    named = {name: finite_or_name(value) for name, value in values.items()}
    return named | {f"{name}_exact": _fraction(value) for name, value in values.items()}


def _exactly(field: str, **values: Fraction) -> dict[str, Any]:
    """Exact numbers, each with its nearest float64; InputError at the field where that has none."""
    nearest = {name: _in_float64(value, field) for name, value in values.items()}
    return nearest | {f"{name}_exact": fraction_text(value) for name, value in values.items()}


# ---- the weight


def _weight(inputs: Inputs, weight: Fraction, update: Fraction) -> Weight:
    form = FORMATS[inputs.dtype]
    held = form.nearest(weight)
    if not math.isfinite(held):
        en, zh = f"is beyond the range of {inputs.dtype}", f"超出 {inputs.dtype} 的范围"
        raise InputError(en, zh, field="weight", code="number_range")
    start, way = Fraction(held), inputs.steps * update
    aim = start + way
    in_dtype = moved(start, update, inputs.steps, form)
    master = moved(start, update, inputs.steps, _SINGLE).after
    stored = form.nearest(Fraction(master)) if math.isfinite(master) else master
    stood = {"stopped_after_steps": in_dtype.stopped}
    return Weight(
        start=held,
        start_exact=fraction_text(start),
        spacing=float(form.spacing(start)),
        **_exactly("update", exact=aim),
        schemes={
            "in_dtype": _kept(in_dtype.after, start, way, form, **stood),
            "float32_master": _kept(stored, start, way, form, **_held(master=master)),
            "stochastic": _stochastic(start + update, aim, form),
        },
    )


def _kept(after: float, start: Fraction, way: Fraction, form: FloatFormat, **more: Any) -> WeightScheme:
    """A way that ends at `after`, where exact arithmetic would end at start + way."""
    aim = start + way
    if not math.isfinite(after):
        return WeightScheme(
            defined=False, reason="non_finite", matches_reference=False, after=finite_or_name(after), **more
        )
    reason: models.Reason | None = None
    if not way or not aim:
        reason = "zero_reference"
    elif "stopped_after_steps" in more and more["stopped_after_steps"] is None:
        reason = "not_reached"
    return WeightScheme(
        defined=True,
        reason=reason,
        matches_reference=after == form.nearest(aim),
        **_held(after=after),
        ratio_to_reference=_in_float64(Fraction(after) / aim, "update") if aim else None,
        moved_share=_in_float64((Fraction(after) - start) / way, "update") if way else None,
        **more,
    )


def _stochastic(first: Fraction, aim: Fraction, form: FloatFormat) -> WeightScheme:
    """Exact: the expectation after all steps, and the first step's two outcomes."""
    beside = neighbours(first, form)
    ends = _held(first_lower=beside.lower, first_upper=beside.upper)
    if not (math.isfinite(beside.lower) and math.isfinite(beside.upper)):
        return WeightScheme(defined=False, reason="non_finite", matches_reference=False, **ends)
    up = beside.probability_of_upper(first)
    variance = up * (1 - up) * (Fraction(beside.upper) - Fraction(beside.lower)) ** 2
    return WeightScheme(
        defined=True,
        reason=None if aim else "zero_reference",
        matches_reference=True,
        ratio_to_reference=1.0 if aim else None,
        **_exactly("update", expected=aim, first_upper_probability=up, first_variance=variance),
        **ends,
    )


# ---- the sum


def _accumulation(gradients: tuple[Fraction, ...], form: FloatFormat) -> Accumulation:
    total = sum(gradients, Fraction(0))
    narrow, wide = accumulated(gradients, form), accumulated(gradients, _SINGLE)
    stored = form.nearest(Fraction(wide)) if math.isfinite(wide) else wide
    finite = math.isfinite(narrow)
    return Accumulation(
        **_exactly("gradients", exact=total),
        **_held(in_dtype=narrow, in_float32=wide, in_float32_stored=stored),
        lost=_in_float64(total - Fraction(narrow), "gradients") if finite else None,
        reason=None if finite else "non_finite",
    )


# ---- the scales


def _magnitudes(rows: Sequence[Sequence[int | float | str]]) -> Amax:
    """Exact magnitudes, as many microsteps on every rank; InputError names the place."""
    if not rows or not rows[0]:
        raise InputError("needs at least one magnitude", "至少要有一个数", field="amax", code="too_short")
    if len(rows) > MAX_RANKS or sum(map(len, rows)) > MAX_CELLS:
        en = f"holds more than {MAX_RANKS:,} ranks or {MAX_CELLS:,} cells"
        raise InputError(en, f"超过 {MAX_RANKS:,} 个 rank 或 {MAX_CELLS:,} 格", field="amax", code="too_long")
    amax: Amax = []
    for r, row in enumerate(rows):
        if len(row) != len(rows[0]):
            en = f"of rank {r} has {len(row)} microsteps; every rank needs as many as the first"
            zh = f"在 rank {r} 有 {len(row)} 个微步；每个 rank 应与第一个同样多"
            raise InputError(en, zh, field=("amax", r), code="shape_mismatch")
        amax.append([])
        for k, cell in enumerate(row):
            try:
                amax[-1].append(not_negative(exact(cell)))
            except InputError as error:
                raise InputError(error.en, error.zh, field=("amax", r, k), code=error.code) from None
    return amax


def _float8(amax: Amax, inputs: Inputs) -> Float8:
    form = FLOAT8[inputs.fp8]
    taken = chosen_amax(amax)
    right = taken["max_over_all"]
    return Float8(
        largest=form.largest,
        schemes={name: _scaled(amax, tops, inputs.margin, form, tops == right) for name, tops in taken.items()},
    )


def _scaled(amax: Amax, tops: list[Fraction], margin: int, form: FloatFormat, right: bool) -> ScaleScheme:
    if not all(tops):
        return ScaleScheme(defined=False, reason="zero_count", matches_reference=False)
    scales = [Fraction(form.largest) / top / Fraction(2) ** margin for top in tops]
    cells = len(amax) * len(amax[0])
    as_floats = [_in_float64(scale, "amax") for scale in scales]
    if not all(as_floats):
        raise InputError("makes a scale leave float64", "使缩放超出 float64 的范围", field="amax", code="number_range")
    few = cells <= MAX_EXACT_CELLS
    if few:
        kept = kept_exactly(amax, scales, form)
    else:
        kept = kept_in_bulk(np.array([[float(cell) for cell in row] for row in amax]), np.array(as_floats), form)
    if not np.isfinite(kept.values).all():
        en, zh = "makes a kept value leave float64", "使留下的值超出 float64 的范围"
        raise InputError(en, zh, field="amax", code="number_range")
    spread = max(scales) / min(scales)
    return ScaleScheme(
        defined=True,
        reason=None,
        matches_reference=right,
        scales=as_floats,
        scales_exact=[fraction_text(scale) for scale in scales] if few else None,
        **_exactly("amax", scale_spread=spread),
        largest_kept=kept.values if cells <= MAX_LISTED_CELLS else None,
        largest_kept_exact=None
        if kept.exact is None
        else [[fraction_text(cell) for cell in row] for row in kept.exact],
        saturated=kept.saturated,
    )
