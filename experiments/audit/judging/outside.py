"""What rules the next update and is not in the model or the optimizer's moments.

Copies of the parameters (a moving average, a teacher) that the file keeps in its global names, that build() returned
beside the optimizer, or that torch.optim.swa_utils keeps; and numbers: learning rates, a scaler's scale, a schedule.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

DEEP = 4
"""How deep a global name is looked into."""

Named = Iterator[tuple[str, torch.Tensor]]


def tensors(name: str, value: Any, depth: int = 0) -> Named:
    """All tensors in a value, by where they are in it."""
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, nn.Module):
        yield from ((f"{name}.{key}", each) for key, each in value.state_dict().items())
    elif depth < DEEP and isinstance(value, Mapping):
        for key, each in value.items():
            yield from tensors(f"{name}.{key}", each, depth + 1)
    elif depth < DEEP and isinstance(value, (list, tuple)):
        for i, each in enumerate(value):
            yield from tensors(f"{name}.{i}", each, depth + 1)
    elif depth < DEEP and _plain_object(value):
        yield from tensors(name, vars(value), depth + 1)


def _plain_object(value: Any) -> bool:
    """An object of a class of the reader's own, such as an average that is written by hand."""
    ours = type(value).__module__.partition(".")[0] in ("torch", "builtins", "numpy", "samestep")
    return hasattr(value, "__dict__") and not isinstance(value, type) and not callable(value) and not ours


def copies(held: Mapping[str, Any], model: nn.Module) -> tuple[dict[str, torch.Tensor], list[str]]:
    """Copies of the model's parameters among these values, and the names of values with other tensors.

    A value counts as a copy if every floating-point tensor in it has the shape of a parameter, or is as long as all
    parameters together, and none is a parameter.
    """
    own = {parameter.untyped_storage().data_ptr() for parameter in _local(model.parameters())}
    shapes = {tuple(parameter.shape) for parameter in model.parameters() if parameter.numel() > 1}
    shapes.add((sum(parameter.numel() for parameter in model.parameters()),))
    found: dict[str, torch.Tensor] = {}
    others = []
    for name, value in held.items():
        inside = dict(tensors(name, value))
        floating = {key: each for key, each in inside.items() if each.is_floating_point()}
        if not floating or any(each.untyped_storage().data_ptr() in own for each in _local(floating.values())):
            continue
        if all(tuple(each.shape) in shapes for each in floating.values()):
            found |= floating
        else:
            others.append(name)
    return found, others


def _local(found: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
    for tensor in found:
        yield getattr(tensor, "_local_tensor", tensor)


def state(optimizers: Iterable[torch.optim.Optimizer], named: Mapping[str, nn.Parameter]) -> Named:
    """What the optimizers keep for these parameters, by the names of both."""
    names = {id(parameter): name for name, parameter in named.items()}
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                for key, value in optimizer.state.get(parameter, {}).items():
                    if isinstance(value, (torch.Tensor, float, int)) and id(parameter) in names:
                        yield f"{names[id(parameter)]}.{key}", torch.as_tensor(value)


def settings(optimizers: Iterable[torch.optim.Optimizer], others: Iterable[Any]) -> dict[str, float]:
    """Every number in the optimizers' groups, and in the states of schedulers and scalers."""
    found: dict[str, float] = {}
    for i, optimizer in enumerate(optimizers):
        for j, group in enumerate(optimizer.param_groups):
            for key, value in group.items():
                if key != "params":
                    found |= dict(_numbers(f"optimizer{i}.group{j}.{key}", value))
    for i, each in enumerate(others):
        if not isinstance(each, nn.Module) and callable(getattr(each, "state_dict", None)):
            for key, value in each.state_dict().items():
                found |= dict(_numbers(f"{type(each).__name__}{i}.{key}", value))
    return found


def _numbers(name: str, value: Any) -> Iterator[tuple[str, float]]:
    if (isinstance(value, torch.Tensor) and value.numel() == 1) or isinstance(value, (bool, int, float)):
        yield name, float(value)
    elif isinstance(value, (list, tuple)):
        for i, each in enumerate(value):
            yield from _numbers(f"{name}.{i}", each)
