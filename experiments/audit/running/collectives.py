"""Listen to collectives: their names in order, those that cut the graph, and those that nobody waited for."""

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional

from samestep.experiments.taps.moments import Moments

Function = Callable[..., Any]

PLAIN = (
    "all_reduce",
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_object",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "reduce",
    "broadcast",
    "all_to_all",
    "all_to_all_single",
)
"""They return no gradient, whatever they are given."""
INNER = ("all_gather_single", "reduce_scatter_single")
"""What fully_shard calls by itself: no events, but the types that gradients are carried in."""
FUNCTIONAL = (
    "all_gather_single",
    "all_gather_single_autograd",
    "all_gather_tensor",
    "all_gather_tensor_autograd",
    "all_reduce",
    "all_to_all_single",
    "all_to_all_single_autograd",
)
WITHIN = " within the step"
"""After the name of a collective that an optimizer issues itself."""
POINT_TO_POINT = ("send", "recv", "isend", "irecv", "batch_isend_irecv")


def install(patch: Callable[[Any, str, Function], None], announced: Function, state: Any, moments: Moments) -> None:
    """Put the patches in. `state`: where the taps say who listens; what a clip does by itself is not reported."""
    for name in PLAIN:
        patch(dist, name, functools.partial(_collective, state, moments, name))
    for name in INNER:
        if hasattr(dist, name):
            patch(dist, name, functools.partial(_inner, state))
    for name in FUNCTIONAL:
        if hasattr(functional, name):
            patch(functional, name, functools.partial(announced, f"collective {name}"))
    for name in POINT_TO_POINT:
        patch(dist, name, functools.partial(announced, f"point-to-point {name}"))
        setattr(dist.distributed_c10d, name, getattr(dist, name))  # P2POp looks for one of its own functions
    for name in ("wait", "synchronize", "get_future", "is_completed"):
        if hasattr(dist.Work, name):
            patch(dist.Work, name, functools.partial(_waited, state))


def _collective(state: Any, moments: Moments, name: str, original: Function, *args: Any, **kwargs: Any) -> Any:
    listener = state.listener
    if listener is None or moments.clipping:
        return original(*args, **kwargs)
    tensors = list(_tensors((*args, *kwargs.values())))
    listener.handed(tensors)
    if state.backward_depth:
        return original(*args, **kwargs)
    listener.event(f"collective {name}{WITHIN if state.stepping else ''}")
    if torch.is_grad_enabled() and any(tensor.requires_grad and not tensor.is_leaf for tensor in tensors):
        listener.detached(name)
    work = original(*args, **kwargs)
    if work is not None and kwargs.get("async_op"):
        listener.started(work, name, tensors)
    return work


def _inner(state: Any, original: Function, *args: Any, **kwargs: Any) -> Any:
    if state.listener is not None:
        state.listener.handed(list(_tensors((*args, *kwargs.values()))))
    return original(*args, **kwargs)


def _waited(state: Any, original: Function, work: Any, *args: Any, **kwargs: Any) -> Any:
    if state.listener is not None:
        state.listener.waited(work)
    return original(work, *args, **kwargs)


def _tensors(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)
