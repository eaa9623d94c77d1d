"""What torch's collectives really do, on P Gloo processes: outputs, gradients, errors and warnings, case by case.

Run by `test_collectives.py` through `experiments.ranks`. `options["cases"]` are bodies of the calculator with
output_grads; the result lists, in the same order, for each way the rows over ranks of the output, the gradient, the
error and the warnings.
"""

import warnings
from collections.abc import Callable
from typing import Any, cast

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.nn.functional as nn_functional

from samestep.app.evidence.bags import Result
from samestep.experiments.ranks.world import World

REDUCE = {
    "sum": dist.ReduceOp.SUM,
    "avg": dist.ReduceOp.AVG,
    "max": dist.ReduceOp.MAX,
    "min": dist.ReduceOp.MIN,
    "product": dist.ReduceOp.PRODUCT,
}

Case = dict[str, Any]
Collective = Callable[[torch.Tensor, Case, Any], torch.Tensor]


def by_functional(x: torch.Tensor, case: Case, group: Any) -> torch.Tensor:
    slots = [len(x) // group.size()] * group.size()
    calls: dict[str, Callable[[], torch.Tensor]] = {
        "all_reduce": lambda: functional.all_reduce(x, case["reduce"], group),
        "reduce_scatter": lambda: functional.reduce_scatter_single(x, case["reduce"], 0, group),
        "all_gather": lambda: functional.all_gather_single(x, 0, group),
        "broadcast": lambda: functional.broadcast(x, case["root"], group),
        "all_to_all": lambda: functional.all_to_all_single(x, slots, slots, group),
    }
    return calls[case["op"]]()


def by_nn_functional(x: torch.Tensor, case: Case, group: Any) -> torch.Tensor:
    deprecated = cast(Any, nn_functional)
    parts = list(x.chunk(group.size()))
    op = REDUCE[case["reduce"]]
    calls: dict[str, Callable[[], Any]] = {
        "all_reduce": lambda: deprecated.all_reduce(x, op, group),
        "reduce_scatter": lambda: deprecated.reduce_scatter(torch.empty_like(parts[0]), parts, op, group),
        "all_gather": lambda: torch.cat(deprecated.all_gather(x, group)),
        "broadcast": lambda: deprecated.broadcast(x, case["root"], group),
        "all_to_all": lambda: deprecated.all_to_all_single(torch.empty_like(x), x, group=group),
    }
    return cast(torch.Tensor, calls[case["op"]]())


def by_plain(x: torch.Tensor, case: Case, group: Any) -> torch.Tensor:
    held = x * 1.0  # collectives may not write into a leaf that requires a gradient
    op = REDUCE[case["reduce"]]
    if case["op"] == "all_reduce":
        dist.all_reduce(held, op, group)
        return held
    if case["op"] == "broadcast":
        dist.broadcast(held, case["root"], group)
        return held
    if case["op"] == "all_gather":
        gathered = [torch.empty_like(x) for _ in range(group.size())]
        dist.all_gather(gathered, held, group)
        return torch.cat(gathered)
    if case["op"] == "all_to_all":
        exchanged = torch.empty_like(x)
        dist.all_to_all_single(exchanged, held, group=group)
        return exchanged
    parts = list(held.chunk(group.size()))
    scattered = torch.empty_like(parts[0])
    dist.reduce_scatter(scattered, parts, op, group)
    return scattered


WAYS: dict[str, Collective] = {
    "functional": by_functional,
    "nn_functional": by_nn_functional,
    "plain": by_plain,
}


def observe(collective: Collective, case: Case, group: Any, rank: int) -> dict[str, Any]:
    """One collective forward and backward on this rank."""
    x = torch.tensor(case["values"][rank], requires_grad=True)
    seen: dict[str, Any] = {"output": None, "gradient": None, "error": None}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        y = collective(x, case, group)
        seen["output"] = y.detach().tolist()
        try:
            if y.requires_grad:
                y.backward(torch.tensor(case["output_grads"][rank]))  # type: ignore[no-untyped-call]
        except RuntimeError as error:
            seen["error"] = str(error)
    seen["gradient"] = None if x.grad is None else x.grad.tolist()
    seen["warnings"] = sorted({warning.category.__name__ for warning in caught})
    return seen


def run(world: World) -> Result | None:
    answers: list[dict[str, Any]] = []
    for number, case in enumerate(cast(list[Case], world.options["cases"])):
        world.step(f"case {number}")
        ranks = len(case["values"])
        group = world.first(ranks)
        rows = {}
        for name, way in WAYS.items():
            seen = observe(way, case, group, world.rank) if world.rank < ranks else None
            rows[name] = world.gather(seen)[:ranks]
        answers.append(rows)
    return cast(Result, {"name": "gloo_collectives", "answers": answers}) if world.rank == 0 else None
