"""Listen to the reader's step without changing it: patches that are put in once, before the file is loaded.

Whoever imports `clip_grad_norm_` or `all_reduce` by name afterwards gets the patched function. While no recorder is
`listening` every patch passes straight through. Nothing here issues a collective: a step that one rank does not take
must hang as it would without us.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import _functional_collectives as functional
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

Function = Callable[..., Any]

COLLECTIVES = (
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


FUNCTIONAL = (
    "all_gather_single",
    "all_gather_single_autograd",
    "all_gather_tensor",
    "all_gather_tensor_autograd",
    "all_reduce",
    "all_to_all_single",
    "all_to_all_single_autograd",
)


class Listener(Protocol):
    """What a recorder wants to hear."""

    def forward(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], outermost: bool) -> None: ...
    def backward_begins(self) -> None: ...
    def backward_ended(self, root: Any) -> None: ...
    def norm(self, value: Any) -> None: ...
    def before_clip(self) -> None: ...
    def before_step(self, optimizer: torch.optim.Optimizer) -> None: ...
    def after_step(self, optimizer: torch.optim.Optimizer) -> None: ...
    def event(self, name: str) -> None: ...
    def scaled(self, scale: float) -> None: ...
    def dropped_out(self, where: str) -> None: ...


class _State:
    listener: Listener | None = None
    forward_depth = 0
    backward_depth = 0
    quiet = 0


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Have the patches report to this recorder."""
    _State.listener, _State.forward_depth, _State.backward_depth, _State.quiet = listener, 0, 0, 0
    try:
        yield
    finally:
        _State.listener = None


def install() -> None:
    """Put all patches in. Once a process, before any file of the reader's is loaded."""
    _patch(nn.Module, "__call__", _module_call)
    _patch(torch.autograd, "backward", _backward)
    for name in COLLECTIVES:
        _patch(dist, name, functools.partial(_announced, f"collective {name}"))
    for name in FUNCTIONAL:
        if hasattr(functional, name):
            _patch(functional, name, functools.partial(_announced, f"collective {name}"))
    for name, wrapper in _CLIPPERS.items():
        for place in (nn.utils.clip_grad, nn.utils):
            if hasattr(place, name):
                _patch(place, name, wrapper)
    for owner in (torch.optim.Optimizer, nn.Module):
        _patch(owner, "zero_grad", functools.partial(_announced, "zero_grad"))
    _patch(torch.amp.GradScaler, "scale", _scale)
    _patch(torch.amp.GradScaler, "unscale_", functools.partial(_announced, "unscale"))
    _patch(nn.functional, "dropout", _dropout)
    _patch(torch.autocast, "__enter__", functools.partial(_announced, "autocast"))
    _patch(dist, "init_process_group", _ignored)
    _patch(dist, "destroy_process_group", _destroyed)
    register_optimizer_step_pre_hook(_step_begins)
    register_optimizer_step_post_hook(_step_ended)


def _patch(owner: Any, name: str, wrapper: Function) -> None:
    original = getattr(owner, name)
    patched = functools.wraps(original)(functools.partial(wrapper, original))
    if isinstance(owner, type):  # a method has to be a function, to be bound
        setattr(owner, name, functools.wraps(original)(_method(wrapper, original)))
    else:
        setattr(owner, name, patched)


def _method(wrapper: Function, original: Function) -> Function:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return wrapper(original, self, *args, **kwargs)

    return method


def _module_call(original: Function, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    listener = _State.listener
    if listener is None or _State.backward_depth:  # inside a backward: recomputed for a checkpoint
        return original(module, *args, **kwargs)
    listener.forward(module, args, kwargs, _State.forward_depth == 0)
    _State.forward_depth += 1
    try:
        return original(module, *args, **kwargs)
    finally:
        _State.forward_depth -= 1


def _backward(original: Function, tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> Any:
    listener = _State.listener
    if listener is None or _State.backward_depth:
        return original(tensors, grad_tensors, *args, **kwargs)
    listener.backward_begins()
    _State.backward_depth += 1
    try:
        result = original(tensors, grad_tensors, *args, **kwargs)
    finally:
        _State.backward_depth -= 1
    listener.backward_ended(tensors if grad_tensors is None else None)
    return result


def _announced(event: str, original: Function, *args: Any, **kwargs: Any) -> Any:
    if _State.listener is not None and not _State.quiet and not _State.backward_depth:
        _State.listener.event(event)
    return original(*args, **kwargs)


def _ignored(original: Function, *args: Any, **kwargs: Any) -> None:
    """The reader's world is there before the file is loaded (`experiments.audit.worlds` keeps the original)."""


def _destroyed(original: Function, group: Any = None) -> None:
    """The world outlives the reader's step; a group of the reader's own may go."""
    if group is not None and group is not dist.group.WORLD:
        original(group)


def _clip(original: Function, *args: Any, **kwargs: Any) -> Any:
    """clip_grad_norm_ and its older name: the norm is what it returns."""
    listener = _State.listener
    if listener is None or _State.quiet:
        return original(*args, **kwargs)
    listener.before_clip()
    _State.quiet += 1
    try:
        norm = original(*args, **kwargs)
    finally:
        _State.quiet -= 1
    if norm is not None:
        listener.norm(norm)
    return norm


def _clip_with_norm(
    original: Function, parameters: Any, max_norm: Any, total_norm: Any, *args: Any, **more: Any
) -> Any:
    """clip_grads_with_norm_: the norm is what it is given."""
    if _State.listener is not None and not _State.quiet:
        _State.listener.before_clip()
        _State.listener.norm(total_norm)
    return original(parameters, max_norm, total_norm, *args, **more)


_CLIPPERS: dict[str, Function] = {
    "clip_grad_norm_": _clip,
    "clip_grad_value_": _clip,
    "clip_grads_with_norm_": _clip_with_norm,
}


def _scale(original: Function, scaler: Any, outputs: Any) -> Any:
    scaled = original(scaler, outputs)
    if _State.listener is not None and scaler.is_enabled():
        _State.listener.scaled(float(scaler.get_scale()))
    return scaled


def _dropout(original: Function, input: torch.Tensor, p: float = 0.5, training: bool = True, *more: Any) -> Any:
    if _State.listener is not None and training and p > 0:
        _State.listener.dropped_out(f"dropout(p={p})")
    return original(input, p, training, *more)


def _step_begins(optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if _State.listener is not None and not _has_closure(args, kwargs):
        _State.listener.before_step(optimizer)


def _step_ended(optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """A closure makes the gradients within the step; they are still there when it has ended."""
    if _State.listener is not None:
        if _has_closure(args, kwargs):
            _State.listener.before_step(optimizer)
        _State.listener.after_step(optimizer)


def _has_closure(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """`args` begin with the optimizer itself."""
    return callable(kwargs.get("closure")) or (len(args) > 1 and callable(args[1]))


def synchronises(module: nn.Module) -> bool | None:
    """Whether this forward of a DistributedDataParallel prepares a reduction; None for any other module."""
    return bool(module.require_backward_grad_sync) if isinstance(module, DistributedDataParallel) else None


def issued() -> int:
    """How many collectives this process has issued so far in all its groups (a number that only ever grows)."""
    groups = list(dist.distributed_c10d._world.pg_map)
    return sum(int(cast(Any, group)._get_sequence_number_for_group()) for group in groups)
