"""What an audit listens to: the shared taps, and what only it wants to know, put in once before the file is loaded.

Whoever imports `clip_grad_norm_` or `all_reduce` by name afterwards gets the patched function. While no recorder is
`listening` every patch passes straight through. Nothing here issues a collective: a step that one rank does not take
must hang as it would without us.
"""

import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import torch
import torch.distributed as dist
import torch.optim.swa_utils
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from samestep.experiments.audit.running import collectives
from samestep.experiments.taps.engine import Engine
from samestep.experiments.taps.moments import Moments
from samestep.experiments.taps.patches import Patches

Function = Callable[..., Any]


class Listener(Protocol):
    """What a recorder wants to hear."""

    def forward(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], outermost: bool) -> None: ...
    def backward_begins(self) -> None: ...
    def backward_ended(self, root: Any) -> None: ...
    def norm(self, value: Any) -> None: ...
    def before_clip(self, kind: str, limit: float | None) -> None: ...
    def before_step(self, optimizer: torch.optim.Optimizer) -> None: ...
    def after_step(self) -> None: ...
    def event(self, name: str) -> None: ...
    def scaled(self, scale: float) -> None: ...
    def dropped_out(self, where: str) -> None: ...
    def averaged(self, copy: nn.Module) -> None: ...
    def detached(self, collective: str) -> None: ...
    def handed(self, tensors: list[torch.Tensor]) -> None: ...
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


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Have the patches report to this recorder."""
    State.listener, State.forward_depth, State.backward_depth = listener, 0, 0
    try:
        yield
    finally:
        State.listener = None


class Ears:
    """Hands on what the shared taps announce of the moments of a step."""

    @property
    def listening(self) -> bool:
        return State.listener is not None and not State.backward_depth

    def grouped(self, optimizer: Any) -> None:
        """A step's optimizers are met when they step."""

    def zeroing(self, parameters: Iterable[torch.Tensor]) -> None:
        _tell("zero_grad")

    def clipping(self, parameters: list[torch.Tensor], kind: str, limit: Any) -> None:
        if State.listener is not None:
            State.listener.before_clip(kind, float(limit))

    def clipped(self, norm: Any) -> None:
        if State.listener is not None:
            State.listener.norm(norm)

    def scaled(self, scaler: Any) -> None:
        if State.listener is not None:
            State.listener.scaled(float(scaler.get_scale()))

    def unscaled(self, scaler: Any, optimizer: Any) -> None:
        _tell("unscale")

    def skipped(self, scaler: Any, optimizer: Any) -> None:
        _tell("skip")

    def step_begins(self, optimizer: Any, depth: int, closure: bool) -> None:
        if State.listener is not None and not closure:
            State.listener.before_step(optimizer)
            State.stepping = True

    def evaluated(self, optimizer: Any, depth: int) -> None:
        """A closure may be run several times; what it leaves is still there when the step has ended."""

    def step_ends(self, optimizer: Any, depth: int, closure: bool) -> None:
        if State.listener is not None and closure:
            State.listener.before_step(optimizer)
        if State.listener is not None:
            State.listener.after_step()
        State.stepping = False


MOMENTS = Moments(Ears())


def install() -> None:
    """Put all patches in. Once a process, before any file of the reader's is loaded."""
    patches = Patches()
    MOMENTS.install(patches)
    Engine(_around).install(patches)

    def patch(owner: Any, name: str, wrapper: Function) -> None:
        patches.wrap(owner, name, wrapper, everywhere=False)

    collectives.install(patch, announced, State, MOMENTS)
    patch(nn.Module, "__call__", _module_call)
    patch(nn.functional, "dropout", _dropout)
    patch(torch.autocast, "__enter__", functools.partial(announced, "autocast"))
    patch(torch.optim.lr_scheduler.LRScheduler, "step", functools.partial(announced, "scheduler"))
    patch(torch.optim.swa_utils.AveragedModel, "update_parameters", _average)
    patch(DistributedDataParallel, "register_comm_hook", _comm_hook)
    patch(dist, "init_process_group", _ignored)
    patch(dist, "destroy_process_group", _destroyed)


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


@contextmanager
def _around(name: str, roots: Any, more: tuple[Any, ...], named: dict[str, Any]) -> Iterator[None]:
    """An outermost backward; gradients that are only asked for are nothing that a step is made of."""
    listener = State.listener
    if listener is None or State.backward_depth or name != "backward":
        yield
        return
    listener.backward_begins()
    State.backward_depth += 1
    try:
        with listener.silenced(roots):
            yield
    finally:
        State.backward_depth -= 1
    whole = named.get("grad_tensors", more[0] if more else None) is None
    listener.backward_ended(roots if whole else None)


def _tell(event: str) -> None:
    if State.listener is not None and not MOMENTS.clipping and not State.backward_depth:
        State.listener.event(event)


def announced(event: str, original: Function, *args: Any, **kwargs: Any) -> Any:
    _tell(f"{event}{collectives.WITHIN}" if State.stepping and event.startswith("collective") else event)
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


def synchronises(module: nn.Module) -> bool | None:
    """Whether this forward of a DistributedDataParallel prepares a reduction; None for any other module."""
    return bool(module.require_backward_grad_sync) if isinstance(module, DistributedDataParallel) else None
