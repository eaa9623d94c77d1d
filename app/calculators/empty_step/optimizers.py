"""The updates of AdamW and SGD, and what a step's change is made of."""

from dataclasses import dataclass

import numpy as np

from samestep.app.calculators.empty_step.inputs import Inputs
from samestep.app.contract.arrays import Floats, Path, floats
from samestep.app.contract.errors import InputError
from samestep.app.contract.numbers import as_float


@dataclass(frozen=True, eq=False)
class Memory:
    """An optimizer's state in arrays; what the optimizer does not keep, or not yet, is None."""

    param: Floats
    exp_avg: Floats | None = None
    exp_avg_sq: Floats | None = None
    step: int | None = None
    momentum_buffer: Floats | None = None


@dataclass(frozen=True, eq=False)
class Step:
    """A state after `step()`, and the parts that the parameters' change is made of."""

    memory: Memory
    from_decay: Floats
    from_history: Floats
    from_gradient: Floats


def adamw(before: Memory, gradient: Floats, inputs: Inputs) -> Step:
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
    return Step(
        Memory(param=after, exp_avg=old + new, exp_avg_sq=second, step=step),
        from_decay=decay,
        from_history=-rate * (old / denominator),
        from_gradient=-rate * (new / denominator),
    )


def _bias(beta: float, step: int) -> float:
    """1 - beta^step, without the cancellation that beta near 1 brings."""
    return float(-np.expm1(step * np.log(beta))) if beta else 1.0


def sgd(before: Memory, gradient: Floats, inputs: Inputs) -> Step:
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
    return Step(
        Memory(param=after, momentum_buffer=kept),
        from_decay=-lr * direct * decay,
        from_history=-lr * history,
        from_gradient=-lr * direct * gradient,
    )


def unmoved(before: Memory) -> Step:
    zeros = np.zeros_like(before.param)
    return Step(before, zeros, zeros, zeros)


def memory_of(inputs: Inputs) -> Memory:
    def read(name: str) -> Floats | None:
        values = getattr(inputs, name)
        return None if values is None else floats(values, as_float, lambda i: (name, i))

    param = floats(inputs.param, as_float, lambda i: ("param", i))
    if inputs.optimizer == "sgd":
        return Memory(param=param, momentum_buffer=read("momentum_buffer"))
    first, second = read("exp_avg"), read("exp_avg_sq")
    zeros = np.zeros_like(param)
    second = zeros if second is None else second
    if (second < 0).any():
        place: Path = ("exp_avg_sq", int(np.flatnonzero(second < 0)[0]))
        raise InputError("must be 0 or more", "不能小于 0", field=place, code="greater_than_equal")
    return Memory(param=param, exp_avg=zeros if first is None else first, exp_avg_sq=second, step=inputs.step)
