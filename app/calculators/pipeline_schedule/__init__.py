"""What a microbatch weighs after several calls of a pipeline schedule, when a stage works, and a tied weight's step.

Words and symbols: a training step makes K calls of the schedule (gradient accumulation round a pipeline), call k with
n_k microbatches; `parts` are their mean gradients, n_kj their items, N all of them. The reference is the mean over all
items, weights n_kj/N. Schemes are those of `weights`, the timing is that of `timing`. The order of the work changes no
weight: 1f1b and gpipe have the same gradient.

A weight w tied over the first and the last stage has a gradient on each, whose sum is its own:

    summed       both step by first + last             not_summed   each by its own
    averaged     both by (first + last)/2

Exact up to MAX_EXACT_CELLS numbers, float64 above. A microbatch without items has no mean: schemes in which it weighs
something are undefined (`empty_cell`).
"""

import math
from fractions import Fraction
from typing import Any

import numpy as np

from samestep.app.calculators.pipeline_schedule.inputs import Inputs, Query, Tied, window_of
from samestep.app.calculators.pipeline_schedule.results import (
    Bar,
    Reference,
    Result,
    SchemeResult,
    TiedName,
    TiedResult,
    Timing,
    View,
)
from samestep.app.calculators.pipeline_schedule.timing import bubble, in_flight, order, slots
from samestep.app.calculators.pipeline_schedule.weights import SchemeName, uniform_factor, weights
from samestep.app.contract.limits import MAX_LISTED_CELLS
from samestep.app.contract.models import Reason, selection
from samestep.app.contract.numbers import fraction_text
from samestep.app.mathematics.window import Numbers, Window, as_float, as_text, total

__all__ = ["Inputs", "Query", "Result", "View", "compute", "present"]

DRAWN_STAGES, DRAWN_MICROBATCHES = 12, 16


def compute(inputs: Inputs) -> Result:
    """Every scheme on the given microbatches; InputError names what does not fit."""
    window = window_of(inputs)
    right = window.counts / window.total if window.total else None
    return Result(
        calls=len(window.sizes),
        microbatches=len(window.counts),
        items=float(window.total),
        reference=_reference(window, right),
        schemes={name: _scheme(name, make, window, right) for name, make in weights(window).items()},
        timing=_timing(inputs, window.sizes[0]),
        tied=None if inputs.tied is None else _tied(inputs.tied),
    )


def _gradient(window: Window, found: Numbers) -> Numbers:
    """Σ weight · mean gradient, (1,) or (d,)."""
    parts = window.gradient_sums
    return np.atleast_1d(total(found * parts if parts.ndim == 1 else found[:, None] * parts))


def _listed(window: Window, found: Numbers) -> dict[str, Any]:
    if len(found) > MAX_LISTED_CELLS:
        return {"weights": None, "weights_exact": None}
    return {
        "weights": window.nested(as_float(found)),
        "weights_exact": window.nested(as_text(found)) if window.is_exact else None,
    }


def _reference(window: Window, right: Numbers | None) -> Reference:
    if right is None:
        none = dict.fromkeys(("weights", "weights_exact", "grad", "grad_exact"))
        return Reference(defined=False, reason="zero_count", **none)
    grad = _gradient(window, right)
    return Reference(defined=True, reason=None, **_listed(window, right), grad=as_float(grad), grad_exact=as_text(grad))


def _scheme(name: SchemeName, make: Any, window: Window, right: Numbers | None) -> SchemeResult:
    if name == "global_count" and right is None:
        none = dict.fromkeys(set(SchemeResult.model_fields) - {"defined", "reason", "matches_reference"})
        return SchemeResult(defined=False, reason="zero_count", matches_reference=False, **none)
    found: Numbers = make()
    reason: Reason | None = None
    grad: Numbers | None = None
    ratio = factor = None
    if ((window.counts == 0) & (found != 0)).any():
        reason = "empty_cell"
    else:
        grad = _gradient(window, found)
    if right is not None:
        factor = uniform_factor(found, right)
    if grad is not None and right is not None and window.gradient_sums.ndim == 1:
        reference = _gradient(window, right)[0]
        ratio = grad[0] / reference if reference else None
        reason = None if reference else "zero_reference"
    summed = total(found)
    return SchemeResult(
        defined=grad is not None,
        reason=reason,
        **_listed(window, found),
        total_weight=as_float(summed),
        total_weight_exact=as_text(summed),
        grad=as_float(grad),
        grad_exact=as_text(grad),
        uniform_factor=as_float(factor),
        uniform_factor_exact=as_text(factor),
        matches_reference=factor is not None and (factor == 1 if window.is_exact else math.isclose(factor, 1)),
        ratio_to_reference=as_float(ratio),
    )


def _timing(inputs: Inputs, microbatches: int) -> Timing:
    kept = in_flight(inputs.schedule, inputs.stages, microbatches)
    idle = bubble(inputs.stages, microbatches)
    few = 2 * inputs.stages * microbatches <= MAX_LISTED_CELLS
    return Timing(
        order=[[f"{kind}{j}" for kind, j in order(ahead, microbatches)] for ahead in kept] if few else None,
        in_flight=kept,
        bubble=float(idle),
        bubble_exact=fraction_text(idle),
    )


def _tied(tied: Tied) -> dict[TiedName, TiedResult]:
    both = tied.first + tied.last
    steps: dict[TiedName, tuple[Fraction, Fraction]] = {
        "summed": (both, both),
        "not_summed": (tied.first, tied.last),
        "averaged": (both / 2, both / 2),
    }
    return {name: _stepped(tied, *gradients) for name, gradients in steps.items()}


def _stepped(tied: Tied, first: Fraction, last: Fraction) -> TiedResult:
    ends = [tied.weight - tied.lr * gradient for gradient in (first, last)]
    same = first == last
    return TiedResult(
        gradient=float(first) if same else None,
        gradient_exact=fraction_text(first) if same else None,
        first_after=float(ends[0]),
        first_after_exact=fraction_text(ends[0]),
        last_after=float(ends[1]),
        last_after_exact=fraction_text(ends[1]),
        same=ends[0] == ends[1],
    )


def present(inputs: Inputs, scheme: str | None = None) -> View:
    """What is shown of a body, with one of the schemes selected: the first, unless `scheme` names another."""
    result = compute(inputs)
    first = len(inputs.parts[0])
    drawn = inputs.stages <= DRAWN_STAGES and first <= DRAWN_MICROBATCHES
    grid = slots(inputs.schedule, inputs.stages, first) if drawn else []
    return View(
        **dict(result),
        **selection(result.schemes, scheme),
        schedule=inputs.schedule,
        stages=inputs.stages,
        first_call=first,
        stages_shown=min(inputs.stages, DRAWN_STAGES),
        grid=[[Bar(**vars(slot)) for slot in row] for row in grid] if drawn else None,
    )
