"""A gradient beside the right one: the multiple of it that it is, and what is left over."""

from typing import NamedTuple, cast

import torch.distributed as dist
from torch import Tensor

from samestep.app.evidence.bags import Expectation, Row, Text
from samestep.experiments.measured import difference
from samestep.experiments.results import row

Group = dist.ProcessGroup


class Way(NamedTuple):
    """One way to make a gradient: what it is called, and the multiple of the right one that a calculator predicts.

    None: it is no multiple of it, but one rank's part.
    """

    title: Text
    factor: float | None


class Found(NamedTuple):
    """What a rank ends with under a way, and the right gradient of the same elements."""

    gradient: Tensor
    right: Tensor


def added(part: Tensor, group: Group) -> Tensor:
    """The sum over a group."""
    total = part.detach().clone().contiguous()
    dist.all_reduce(total, group=group)
    return total


def multiple(found: Found) -> float:
    """The multiple of the right gradient that lies nearest."""
    return float((found.gradient * found.right).sum() / found.right.square().sum())


def compared(case: str, path: str, way: Way, ranks: list[Found]) -> Row:
    """The worst rank's distance from the right gradient and, of a multiple, from what is predicted."""
    gradient = max(cast(float, difference(*found)) for found in ranks)
    multiples = [multiple(found) for found in ranks]
    expectation: Expectation = "agrees" if way.factor == 1 else "differs"
    differences: dict[str, float | None] = {"gradient": gradient}
    expected: dict[str, Expectation] = {}
    if way.factor is not None:
        differences["factor"] = max(abs(each - way.factor) for each in multiples)
        rests = [difference(found.gradient, way.factor * found.right) for found in ranks]
        differences["remainder"] = max(cast(float, rest) for rest in rests)
        expected = {"factor": "agrees", "remainder": "agrees"}
    else:
        differences["sum"] = difference(sum((each.gradient for each in ranks), 0 * ranks[0].right), ranks[0].right)
        expected = {"sum": "agrees"}
    return row(case, path, way.title, expectation, differences, expected=expected, values={"multiple": [*multiples]})
