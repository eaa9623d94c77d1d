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

from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, StrictBool, model_validator

from samestep.app.contract.arrays import Floats, Path, floats, one_list
from samestep.app.contract.errors import InputError
from samestep.app.contract.fields import (
    ExtendedRowsText,
    NonNegative,
    OptionalRowsText,
    RawExtendedList,
    RawList,
    RowsText,
    number,
    whole_number,
)
from samestep.app.contract.limits import MAX_CELLS, MAX_LISTED_CELLS
from samestep.app.contract.models import (
    Inputs as InputsBase,
    Query as QueryBase,
    Reason,
    Result as ResultBase,
    Table,
    chosen,
)
from samestep.app.contract.numbers import NonFinite, as_float, extended, finite_or_name

Value = float | NonFinite
OptimizerName = Literal["adamw", "sgd"]
SchemeName = Literal[
    "skip", "step_called", "zero_grad", "none_grad", "clamped_denominator", "nan_grad", "scheduler_only"
]
Change = Literal["nothing", "scheduler", "moments", "parameters", "nan"]

MAX_STEP = 2**31 - 1


Beta = Annotated[Fraction, number(low=0, below=1)]
Steps = Annotated[int, whole_number(0, MAX_STEP)]

_OWN: dict[OptimizerName, tuple[str, ...]] = {
    "adamw": ("exp_avg", "exp_avg_sq", "step", "beta1", "beta2", "eps"),
    "sgd": ("momentum", "momentum_buffer", "dampening", "nesterov"),
}


class Inputs(InputsBase):
    """An optimizer's state before the window, and the gradient that `step()` would see.

    Without `exp_avg` and `exp_avg_sq` (AdamW) or `momentum_buffer` (SGD) the optimizer has not stepped yet. Fields of
    the other optimizer are refused. `scheduler_steps` counts the scheduler's calls so far.
    """

    optimizer: OptimizerName = "adamw"
    param: RawList = Field(min_length=1, max_length=MAX_CELLS, examples=[[1, -2]])
    grad: RawExtendedList = Field(min_length=1, max_length=MAX_CELLS, examples=[[0, 0]])
    lr: NonNegative
    weight_decay: NonNegative = Fraction(0)
    exp_avg: RawList | None = Field(default=None, max_length=MAX_CELLS, examples=[["0.5", "-0.25"]])
    exp_avg_sq: RawList | None = Field(default=None, max_length=MAX_CELLS, examples=[["0.04", "0.01"]])
    step: Steps = 0
    beta1: Beta = Fraction(9, 10)
    beta2: Beta = Fraction(999, 1000)
    eps: NonNegative = Fraction(1, 10**8)
    momentum: NonNegative = Fraction(0)
    momentum_buffer: RawList | None = Field(default=None, max_length=MAX_CELLS)
    dampening: NonNegative = Fraction(0)
    nesterov: StrictBool = False
    scheduler_steps: Steps = 0

    @model_validator(mode="after")
    def _holds_together(self) -> "Inputs":
        other: OptimizerName = "sgd" if self.optimizer == "adamw" else "adamw"
        for name in _OWN[other]:
            if name in self.model_fields_set:
                en, zh = f"belongs to {other}, not to {self.optimizer}", f"属于 {other}，不属于 {self.optimizer}"
                raise InputError(en, zh, field=name, code="other_optimizer")
        for name in ("grad", "exp_avg", "exp_avg_sq", "momentum_buffer"):
            values = getattr(self, name)
            if values is not None and len(values) != len(self.param):
                en = f"has {len(values)} values, param {len(self.param)}: one for each"
                zh = f"有 {len(values)} 个值，param 有 {len(self.param)} 个：应一一对应"
                raise InputError(en, zh, field=name, code="shape_mismatch")
        self._check_history()
        if self.nesterov and not (self.momentum > 0 and self.dampening == 0):
            en, zh = "needs a momentum above 0 and no dampening", "要求 momentum 大于 0 且 dampening 为 0"
            raise InputError(en, zh, field="nesterov", code="nesterov")
        return self

    def _check_history(self) -> None:
        if (self.exp_avg is None) != (self.exp_avg_sq is None):
            missing = "exp_avg" if self.exp_avg is None else "exp_avg_sq"
            en, zh = "is missing: both moments or neither", "缺失：两个动量要么都给，要么都不给"
            raise InputError(en, zh, field=missing, code="missing")
        if self.step > 0 and self.exp_avg is None:
            en, zh = "is above 0, but no exp_avg and exp_avg_sq are given", "大于 0，却没有给 exp_avg 与 exp_avg_sq"
            raise InputError(en, zh, field="step", code="no_history")


class Query(QueryBase):
    """The panel. Only the fields of the chosen optimizer are read; lists may be written as rows or as columns."""

    optimizer: OptimizerName = "adamw"
    param: RowsText = Field(default="1,-2", validate_default=True)
    grad: ExtendedRowsText = Field(default="0,0", validate_default=True)
    lr: NonNegative = Fraction(1, 1000)
    weight_decay: NonNegative = Fraction(1, 10)
    exp_avg: OptionalRowsText = Field(default="0.5,-0.25", validate_default=True)
    exp_avg_sq: OptionalRowsText = Field(default="0.04,0.01", validate_default=True)
    step: Steps = 10
    beta1: Beta = Fraction(9, 10)
    beta2: Beta = Fraction(999, 1000)
    eps: NonNegative = Fraction(1, 10**8)
    momentum: NonNegative = Fraction(9, 10)
    momentum_buffer: OptionalRowsText = Field(default="0.5,-0.25", validate_default=True)
    scheme: SchemeName = "zero_grad"

    def inputs(self) -> Inputs:
        """The body that these fields stand for."""
        own = _OWN[self.optimizer]
        body: dict[str, Any] = {"optimizer": self.optimizer, "param": one_list(self.param)}
        body["grad"] = [finite_or_name(value) for value in one_list(self.grad)]
        for name in ("lr", "weight_decay", *(name for name in own if name in Query.model_fields)):
            value = getattr(self, name)
            body[name] = one_list(value) if isinstance(value, tuple) else value
        return Inputs(**body)


class State(ResultBase):
    """The optimizer's state after one way of treating the window, and what has changed.

    `step` and the moments are null for SGD, `momentum_buffer` for AdamW and for SGD that has none (yet); lists with one
    entry an element are null above MAX_LISTED_CELLS of them. `change` names the most that has changed: `nothing`, only
    the `scheduler`, the `moments` (or the step), the `parameters`, or `nan` where a parameter is no longer finite.
    `same_as_skip` speaks of the optimizer (parameters, moments, step), `max_change` is the largest |w' - w|.
    """

    called: bool
    param: list[Value] | None
    exp_avg: list[Value] | None
    exp_avg_sq: list[Value] | None
    step: int | None
    momentum_buffer: list[Value] | None
    scheduler_steps: int
    change: Change
    same_as_skip: bool
    max_change: Value
    from_decay: list[Value] | None
    from_history: list[Value] | None
    from_gradient: list[Value] | None


class Result(ResultBase):
    """All ways side by side. `defined` is false, `reason` `non_finite`, where the given gradient is not finite."""

    optimizer: OptimizerName
    defined: bool
    reason: Reason | None
    skip: State
    step_called: State
    schemes: dict[SchemeName, State]

    def tables(self) -> list[Table]:
        """One row an element of each way, then one a way."""
        places = ("param", "exp_avg", "exp_avg_sq", "momentum_buffer", "from_decay", "from_history", "from_gradient")
        elements: list[tuple[Any, ...]] = []
        for name, state in self.schemes.items():
            lists = [getattr(state, place) for place in places]
            count = max((len(values) for values in lists if values is not None), default=0)
            elements += [(name, i, *(None if values is None else values[i] for values in lists)) for i in range(count)]
        ways = [
            (name, s.called, s.step, s.scheduler_steps, s.change, s.same_as_skip, s.max_change)
            for name, s in self.schemes.items()
        ]
        return [
            Table(header=("scheme", "element", *places), rows=elements),
            Table(
                header=("scheme", "called", "step", "scheduler_steps", "change", "same_as_skip", "max_change"),
                rows=ways,
            ),
        ]


class View(Result):
    """What the panel shows: the state before the window, and the selected way."""

    selected: SchemeName
    current: State
    before: list[float] | None


@dataclass(frozen=True, eq=False)
class _Memory:
    """An optimizer's state in arrays; what the optimizer does not keep, or not yet, is None."""

    param: Floats
    exp_avg: Floats | None = None
    exp_avg_sq: Floats | None = None
    step: int | None = None
    momentum_buffer: Floats | None = None


@dataclass(frozen=True, eq=False)
class _Step:
    """A state after `step()`, and the parts that the parameters' change is made of."""

    memory: _Memory
    from_decay: Floats
    from_history: Floats
    from_gradient: Floats


def _adamw(before: _Memory, gradient: Floats, inputs: Inputs) -> _Step:
    """One AdamW step of the module's docstring."""
    beta1, beta2, lr = float(inputs.beta1), float(inputs.beta2), float(inputs.lr)
    zeros = np.zeros_like(before.param)
    first = zeros if before.exp_avg is None else before.exp_avg
    second = zeros if before.exp_avg_sq is None else before.exp_avg_sq
    step = (before.step or 0) + 1
    old, new = beta1 * first, (1 - beta1) * gradient
    second = beta2 * second + (1 - beta2) * np.square(gradient)
    denominator = np.sqrt(second / _bias(beta2, step)) + float(inputs.eps)
    rate = lr / _bias(beta1, step)
    decay = -lr * float(inputs.weight_decay) * before.param
    after = before.param + decay - rate * ((old + new) / denominator)
    return _Step(
        _Memory(param=after, exp_avg=old + new, exp_avg_sq=second, step=step),
        from_decay=decay,
        from_history=-rate * (old / denominator),
        from_gradient=-rate * (new / denominator),
    )


def _bias(beta: float, step: int) -> float:
    """1 - beta^step, without the cancellation that beta near 1 brings."""
    return float(-np.expm1(step * np.log(beta))) if beta else 1.0


def _sgd(before: _Memory, gradient: Floats, inputs: Inputs) -> _Step:
    """One SGD step of the module's docstring; linear in decay, history and gradient."""
    momentum, lr = float(inputs.momentum), float(inputs.lr)
    buffer = before.momentum_buffer
    decay = float(inputs.weight_decay) * before.param
    fresh = 1.0 if buffer is None else 1 - float(inputs.dampening)
    direct = fresh if momentum else 1.0
    if inputs.nesterov:
        direct = 1 + momentum * fresh
    # mu·b as it enters the update: once in the buffer, and once more through Nesterov's look ahead
    carried = np.zeros_like(gradient) if buffer is None or not momentum else momentum * buffer
    history = carried * momentum if inputs.nesterov else carried
    after = before.param - lr * (direct * (gradient + decay) + history)
    kept = carried + fresh * (gradient + decay) if momentum else buffer
    return _Step(
        _Memory(param=after, momentum_buffer=kept),
        from_decay=-lr * direct * decay,
        from_history=-lr * history,
        from_gradient=-lr * direct * gradient,
    )


def _names(values: Floats | None) -> list[Value] | None:
    if values is None or len(values) > MAX_LISTED_CELLS:
        return None
    return [finite_or_name(value + 0.0) for value in values.tolist()]


def _unmoved(before: _Memory) -> _Step:
    zeros = np.zeros_like(before.param)
    return _Step(before, zeros, zeros, zeros)


def _state(before: _Memory, step: _Step, called: bool, scheduler_steps: int, scheduler_before: int) -> State:
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


def _history(memory: _Memory) -> tuple[object, ...]:
    """What an optimizer remembers, comparable."""
    arrays = (memory.exp_avg, memory.exp_avg_sq, memory.momentum_buffer)
    return (memory.step, *(None if array is None else (array + 0.0).tobytes() for array in arrays))


@np.errstate(all="ignore")
def compute(inputs: Inputs) -> Result:
    """Every way of treating the window, from the same state; InputError where the body does not hold together."""
    before = _memory(inputs)
    given = floats(inputs.grad, extended, lambda i: ("grad", i))
    run = _adamw if inputs.optimizer == "adamw" else _sgd
    zero = run(before, np.zeros_like(given), inputs)
    called = run(before, given, inputs)
    finite = bool(np.isfinite(given).all())
    for step, field in ((zero, "param"), (called, "grad")):
        if field == "param" or finite:
            _must_be_finite(step.memory, field)
    still, count = _unmoved(before), inputs.scheduler_steps
    ways: dict[SchemeName, tuple[_Step, bool, int]] = {
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


def _must_be_finite(memory: _Memory, field: str) -> None:
    """Finite inputs whose step leaves float64, or divides 0 by 0 for want of an ε, are refused."""
    for values in (memory.param, memory.exp_avg, memory.exp_avg_sq, memory.momentum_buffer):
        if values is not None and not np.isfinite(values).all():
            en, zh = "leads to a step that float64 cannot hold", "得到的一步超出 float64 的范围"
            raise InputError(en, zh, field=field, code="number_range")


def _memory(inputs: Inputs) -> _Memory:
    def read(name: str) -> Floats | None:
        values = getattr(inputs, name)
        return None if values is None else floats(values, as_float, lambda i: (name, i))

    param = floats(inputs.param, as_float, lambda i: ("param", i))
    if inputs.optimizer == "sgd":
        return _Memory(param=param, momentum_buffer=read("momentum_buffer"))
    first, second = read("exp_avg"), read("exp_avg_sq")
    zeros = np.zeros_like(param)
    second = zeros if second is None else second
    if (second < 0).any():
        place: Path = ("exp_avg_sq", int(np.flatnonzero(second < 0)[0]))
        raise InputError("must be 0 or more", "不能小于 0", field=place, code="greater_than_equal")
    return _Memory(param=param, exp_avg=zeros if first is None else first, exp_avg_sq=second, step=inputs.step)


def present(inputs: Inputs, scheme: str | None = None) -> View:
    """What is shown of a body, with one of the ways selected: the first, unless `scheme` names another."""
    result = compute(inputs)
    selected = chosen(result.schemes, scheme)
    listed = len(inputs.param) <= MAX_LISTED_CELLS
    return View(
        **dict(result),
        selected=selected,
        current=result.schemes[selected],
        before=floats(inputs.param, as_float, lambda i: ("param", i)).tolist() if listed else None,
    )
