"""What an update window without a valid token does to an optimizer, by how the code treats it.

Words and symbols: w = `param`, g = `grad` (what `.grad` holds when `step()` is called), eta = `lr`, lambda =
`weight_decay`. AdamW (decoupled decay) keeps m = `exp_avg`, v = `exp_avg_sq` and t = `step`:

    t' = t + 1,   m' = b1 m + (1 - b1) g,   v' = b2 v + (1 - b2) g²,
    w' = w - eta lambda w - eta (m' / (1 - b1^t')) / (sqrt(v' / (1 - b2^t')) + e).

SGD adds the decay to the gradient, d = g + lambda w, and keeps b = `momentum_buffer`; with mu = `momentum`:

    b' = mu b + (1 - dampening) d   (b' = d where there is no buffer yet),   w' = w - eta b'
    (Nesterov: w' = w - eta (d + mu b');  mu = 0: w' = w - eta d, and a buffer stays as it is).

These are the updates of `torch.optim.AdamW` and `torch.optim.SGD` (documentation and source, torch 2.13). Seven ways:

    skip                 no call: nothing changes, and the learning-rate scheduler is not called either
    step_called          step() with the given g
    zero_grad            step() with g = 0: the zero loss was backpropagated
    clamped_denominator  step() after dividing by max(N, 1): 0 / 1, so g = 0 once more
    none_grad            step() with `.grad` None (set to None, and no backward): torch passes the parameter over
    nan_grad             step() with g = NaN: the mean of nothing, 0/0
    scheduler_only       no step(), but the scheduler is called as in every other window

Decay and history are why a zero gradient is not "no update". The change w' - w is the sum of `from_decay` (what
lambda w contributes), `from_history` (old m or b) and `from_gradient` (g itself). Shapes: lists of d numbers; float64
throughout. Not modelled: amsgrad, maximize, the roundings of foreach and fused kernels, and what the scheduler does
with its count.
"""

import numpy as np

from samestep.app.calculators.empty_step.inputs import Inputs, Query, SchemeName
from samestep.app.calculators.empty_step.optimizers import Memory, Step, adamw, memory_of, sgd, unmoved
from samestep.app.calculators.empty_step.results import Change, Result, State, Value, View
from samestep.app.contract import models
from samestep.app.contract.arrays import Floats, floats
from samestep.app.contract.errors import InputError
from samestep.app.contract.limits import MAX_LISTED_CELLS
from samestep.app.contract.numbers import as_float, extended, finite_or_name

__all__ = ["Inputs", "Query", "Result", "View", "compute", "present"]


def _names(values: Floats | None) -> list[Value] | None:
    if values is None or len(values) > MAX_LISTED_CELLS:
        return None
    return [finite_or_name(value + 0.0) for value in values.tolist()]


def _state(before: Memory, step: Step, called: bool, scheduler_steps: int, scheduler_before: int) -> State:
    after = step.memory
    differences = np.abs(after.param - before.param)
    if not np.isfinite(after.param).all():
        change: Change = "nan"
    elif differences.any():
        change = "parameters"
    elif _history(after) != _history(before):
        change = "moments"
    else:
        change = "nothing" if scheduler_steps == scheduler_before else "scheduler"
    return State(
        called=called,
        param=_names(after.param),
        exp_avg=_names(after.exp_avg),
        exp_avg_sq=_names(after.exp_avg_sq),
        step=after.step,
        momentum_buffer=_names(after.momentum_buffer),
        scheduler_steps=scheduler_steps,
        change=change,
        same_as_skip=change in ("nothing", "scheduler"),
        max_change=finite_or_name(float(differences.max())),
        from_decay=_names(step.from_decay),
        from_history=_names(step.from_history),
        from_gradient=_names(step.from_gradient),
    )


def _history(memory: Memory) -> tuple[object, ...]:
    """What an optimizer remembers, comparable."""
    arrays = (memory.exp_avg, memory.exp_avg_sq, memory.momentum_buffer)
    return (memory.step, *(None if array is None else (array + 0.0).tobytes() for array in arrays))


@np.errstate(all="ignore")
def compute(inputs: Inputs) -> Result:
    """Every way of treating the window, from the same state; InputError where the body does not hold together."""
    before = memory_of(inputs)
    given = floats(inputs.grad, extended, lambda i: ("grad", i))
    run = adamw if inputs.optimizer == "adamw" else sgd
    zero = run(before, np.zeros_like(given), inputs)
    called = run(before, given, inputs)
    finite = bool(np.isfinite(given).all())
    for step, field in ((zero, "param"), (called, "grad")):
        if field == "param" or finite:
            _must_be_finite(step.memory, field)
    still, count = unmoved(before), inputs.scheduler_steps
    ways: dict[SchemeName, tuple[Step, bool, int]] = {
        "skip": (still, False, count),
        "step_called": (called, True, count + 1),
        "zero_grad": (zero, True, count + 1),
        "none_grad": (still, True, count + 1),
        "clamped_denominator": (zero, True, count + 1),
        "nan_grad": (run(before, np.full_like(given, np.nan), inputs), True, count + 1),
        "scheduler_only": (still, False, count + 1),
    }
    schemes = {name: _state(before, step, stepped, after, count) for name, (step, stepped, after) in ways.items()}
    return Result(
        optimizer=inputs.optimizer,
        defined=finite,
        reason=None if finite else "non_finite",
        skip=schemes["skip"],
        step_called=schemes["step_called"],
        schemes=schemes,
    )


def _must_be_finite(memory: Memory, field: str) -> None:
    """Finite inputs whose step leaves float64, or divides 0 by 0 for want of an ε, are refused."""
    for values in (memory.param, memory.exp_avg, memory.exp_avg_sq, memory.momentum_buffer):
        if values is not None and not np.isfinite(values).all():
            en, zh = "leads to a step that float64 cannot hold", "得到的一步超出 float64 的范围"
            raise InputError(en, zh, field=field, code="number_range")


def present(inputs: Inputs, scheme: str | None = None) -> View:
    """What is shown of a body, with one of the ways selected: the first, unless `scheme` names another."""
    result = compute(inputs)
    listed = len(inputs.param) <= MAX_LISTED_CELLS
    return View(
        **dict(result),
        **models.selection(result.schemes, scheme),
        before=floats(inputs.param, as_float, lambda i: ("param", i)).tolist() if listed else None,
    )
