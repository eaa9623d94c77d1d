"""A window of microsteps under DDP, and what a calculator predicts of it: a weight for every output of the model."""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from samestep.app.evidence.bags import Json, Row, Text
from samestep.experiments.measured import difference
from samestep.experiments.results import row

Group = dist.ProcessGroup
RANKS, MICROSTEPS = 2, 2
PREDICTED = 1e-12
"""So near a calculator has to come to what was measured."""

CellLoss = Callable[[int, Any], Tensor]
"""The loss of a microstep, of its number and of what the model gives for its inputs."""


class Found(NamedTuple):
    """What the ranks end with under a way: the reduced gradient of all parameters, and other measured numbers."""

    gradient: Tensor
    measured: Tensor


class Wanted(NamedTuple):
    """The same from one process with all inputs (`right`), and as a calculator predicts it (`predicted`)."""

    right: Found
    predicted: Found


def added(part: Tensor, group: Group) -> Tensor:
    """The sum over the ranks."""
    total = part.detach().clone()
    dist.all_reduce(total, group=group)
    return total


def flat(model: nn.Module) -> Tensor:
    """The gradients of all parameters, end to end."""
    return torch.cat([cast(Tensor, each.grad).flatten() for each in model.parameters()])


def trained(model: nn.Module, inputs: Sequence[Any], loss: CellLoss, group: Group) -> Found:
    """One window of this rank under DDP: the reduced gradient, and the mean over ranks of the summed losses."""
    replica = DistributedDataParallel(model, process_group=group)
    total = torch.zeros(())
    for k, x in enumerate(inputs):
        with contextlib.nullcontext() if k == len(inputs) - 1 else replica.no_sync():
            own = loss(k, replica(x))
            torch.autograd.backward(own)
        total += own.detach()
    return Found(flat(model), added(total, group)[None] / RANKS)


def weighed(model: nn.Module, x: Any, weights: Sequence[Tensor]) -> Tensor:
    """The gradient of the weighted sum of all outputs of the model, in one process."""
    outputs = model(x)
    torch.autograd.backward([outputs] if isinstance(outputs, Tensor) else outputs, list(weights))
    return flat(model)


def by_unit(cells: Sequence[Sequence[Any]], sizes: Sequence[Sequence[int]]) -> Tensor:
    """What every cell has, repeated for each of its units; the units in order of cells."""
    of_cell = [torch.as_tensor(cell, dtype=torch.float64) for own in cells for cell in own]
    counts = [count for own in sizes for count in own]
    return torch.cat([cell.expand(count, *cell.shape) for cell, count in zip(of_cell, counts, strict=True)])


def farthest(one: Found, other: Found) -> float:
    """The largest difference between two of them."""
    return max(cast(float, difference(a, b)) for a, b in zip(one, other, strict=True))


def compared(case: str, path: str, title: Text, right: bool, ranks: list[Found], wanted: Wanted, **values: Json) -> Row:
    """The worst rank's distance from the right gradient, and from everything that was predicted."""
    gap = max(farthest(found, wanted.predicted) for found in ranks)
    gradient = max(cast(float, difference(found.gradient, wanted.right.gradient)) for found in ranks)
    return row(
        case,
        path,
        title,
        "agrees" if right else "differs",
        {"gradient": gradient, "calculator": gap},
        expected={"calculator": "agrees"},
        values=values,
        also=gap <= PREDICTED,
    )
