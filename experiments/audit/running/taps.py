"""Listen to the reader's step without changing it: patches that are put in once, before the file is loaded.

Whoever imports `clip_grad_norm_` or `all_reduce` by name afterwards gets the patched function. While no recorder is
`listening` every patch passes straight through. Nothing here issues a collective: a step that one rank does not take
must hang as it would without us.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol, cast

import torch
import torch.distributed as dist
import torch.optim.swa_utils
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from samestep.experiments.audit.running import collectives

Function = Callable[..., Any]


class Listener(Protocol):
    """What a recorder wants to hear."""

    def forward(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], outermost: bool) -> None: ...
    def backward_begins(self) -> None: ...
    def backward_ended(self, root: Any) -> None: ...
    def norm(self, value: Any) -> None: ...
    def before_clip(self, kind: str, limit: float | None) -> None: ...
    def before_step(self, optimizer: torch.optim.Optimizer) -> None: ...
    def event(self, name: str) -> None: ...
    def scaled(self, scale: float) -> None: ...
    def dropped_out(self, where: str) -> None: ...
    def averaged(self, copy: nn.Module) -> None: ...
    def detached(self, collective: str) -> None: ...
    def started(self, work: Any, collective: str, tensors: list[torch.Tensor]) -> None: ...
    def waited(self, work: Any) -> None: ...
    def silenced(self, tensors: Any) -> AbstractContextManager[None]: ...


class State:
    """Who listens, and how deep the step is in forwards, backwards and things that are not to be reported."""

    listener: "Listener | None" = None
    forward_depth = 0
    stepping = False
    reducing = False
    backward_depth = 0
    quiet = 0


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Have the patches report to this recorder."""
    State.listener, State.forward_depth, State.backward_depth, State.quiet = listener, 0, 0, 0
    try:
        yield
    finally:
        State.listener = None


def install() -> None:
    """Put all patches in. Once a process, before any file of the reader's is loaded."""
    patch(nn.Module, "__call__", _module_call)
    patch(torch.autograd, "backward", _backward)
    collectives.install(patch, announced, State)
    for name, wrapper in _CLIPPERS.items():
        for place in (nn.utils.clip_grad, nn.utils):
            if hasattr(place, name):
                patch(place, name, wrapper)
    for owner in (torch.optim.Optimizer, nn.Module):
        patch(owner, "zero_grad", functools.partial(announced, "zero_grad"))
    patch(torch.amp.GradScaler, "scale", _scale)
    patch(torch.amp.GradScaler, "unscale_", functools.partial(announced, "unscale"))
    patch(nn.functional, "dropout", _dropout)
    patch(torch.autocast, "__enter__", functools.partial(announced, "autocast"))
    patch(torch.optim.lr_scheduler.LRScheduler, "step", functools.partial(announced, "scheduler"))
    patch(torch.optim.swa_utils.AveragedModel, "update_parameters", _average)
    patch(DistributedDataParallel, "register_comm_hook", _comm_hook)
    patch(dist, "init_process_group", _ignored)
    patch(dist, "destroy_process_group", _destroyed)
    register_optimizer_step_pre_hook(_step_begins)
    register_optimizer_step_post_hook(_step_ended)


def patch(owner: Any, name: str, wrapper: Function) -> None:
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
    listener = State.listener
    if listener is None or State.backward_depth:  # inside a backward: recomputed for a checkpoint
        return original(module, *args, **kwargs)
    listener.forward(module, args, kwargs, State.forward_depth == 0)
    State.forward_depth += 1
    try:
        return original(module, *args, **kwargs)
    finally:
        State.forward_depth -= 1


def _backward(original: Function, tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> Any:
    listener = State.listener
    if listener is None or State.backward_depth:
        return original(tensors, grad_tensors, *args, **kwargs)
    listener.backward_begins()
    State.backward_depth += 1
    try:
        with listener.silenced(tensors):
            result = original(tensors, grad_tensors, *args, **kwargs)
    finally:
        State.backward_depth -= 1
    listener.backward_ended(tensors if grad_tensors is None else None)
    return result


def announced(event: str, original: Function, *args: Any, **kwargs: Any) -> Any:
    if State.listener is not None and not State.quiet and not State.backward_depth:
        State.listener.event(event)
    return original(*args, **kwargs)


def _ignored(original: Function, *args: Any, **kwargs: Any) -> None:
    """The reader's world is there before the file is loaded (`samestep.experiments.audit.running.worlds` keeps the "
    "original)."""


def _destroyed(original: Function, group: Any = None) -> None:
    """The world outlives the reader's step; a group of the reader's own may go."""
    if State.listener is not None and (group is None or group is dist.group.WORLD):
        State.listener.event("process group destroyed")
    if group is not None and group is not dist.group.WORLD:
        original(group)


def _clip(kind: str, original: Function, parameters: Any, limit: Any, *args: Any, **kwargs: Any) -> Any:
    """clip_grad_norm_, its older name and clip_grad_value_: the norm is what they return."""
    listener = State.listener
    if listener is None or State.quiet:
        return original(parameters, limit, *args, **kwargs)
    listener.before_clip(kind, float(limit))
    State.quiet += 1
    try:
        norm = original(parameters, limit, *args, **kwargs)
    finally:
        State.quiet -= 1
    if norm is not None:
        listener.norm(norm)
    return norm


def _clip_named(kind: str, limit: str, original: Function, parameters: Any, *args: Any, **kwargs: Any) -> Any:
    """The limit may be given by name."""
    given = kwargs.pop(limit) if limit in kwargs else args[0]
    return _clip(kind, original, parameters, given, *(args[1:] if args and given is args[0] else args), **kwargs)


def _clip_with_norm(
    original: Function, parameters: Any, max_norm: Any, total_norm: Any, *args: Any, **more: Any
) -> Any:
    """clip_grads_with_norm_: the norm is what it is given."""
    if State.listener is not None and not State.quiet:
        State.listener.before_clip("norm", float(max_norm))
        State.listener.norm(total_norm)
    return original(parameters, max_norm, total_norm, *args, **more)


_CLIPPERS: dict[str, Function] = {
    "clip_grad_norm_": functools.partial(_clip_named, "norm", "max_norm"),
    "clip_grad_value_": functools.partial(_clip_named, "value", "clip_value"),
    "clip_grads_with_norm_": _clip_with_norm,
}


def _scale(original: Function, scaler: Any, outputs: Any) -> Any:
    scaled = original(scaler, outputs)
    if State.listener is not None and scaler.is_enabled():
        State.listener.scaled(float(scaler.get_scale()))
    return scaled


def _dropout(original: Function, input: torch.Tensor, p: float = 0.5, training: bool = True, *more: Any) -> Any:
    if State.listener is not None and training and p > 0:
        State.listener.dropped_out(f"dropout(p={p})")
    return original(input, p, training, *more)


def _average(original: Function, copy: Any, model: nn.Module) -> Any:
    if State.listener is not None:
        State.listener.event("average")
        State.listener.averaged(copy)
    return original(copy, model)


def _comm_hook(original: Function, ddp: Any, state: object, hook: Function) -> Any:
    if State.listener is not None:
        State.listener.event(f"comm hook {getattr(hook, '__qualname__', type(hook).__name__)}")

    @functools.wraps(hook)
    def reducing(state: object, bucket: Any) -> Any:
        State.reducing = True
        try:
            return hook(state, bucket)
        finally:
            State.reducing = False

    return original(ddp, state, reducing)


def _step_begins(optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if State.listener is not None and not _has_closure(args, kwargs):
        State.listener.before_step(optimizer)
        State.stepping = True


def _step_ended(optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """A closure makes the gradients within the step; they are still there when it has ended."""
    if State.listener is not None:
        if _has_closure(args, kwargs):
            State.listener.before_step(optimizer)
        State.stepping = False


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
