"""The calls between a backward and the next one: zeroing, clipping, scaling, stepping, each announced to a listener.

They are wrapped once, for every tool: what is done with the announcement (a sketch, a file, an event) is the
listener's business, and so is a fault of it.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import optimizer as optim

from samestep.experiments.taps.patches import Patches

CLIPS = {"clip_grad_norm_": ("norm", "max_norm"), "clip_grad_value_": ("value", "clip_value")}
"""Clips with their kind, and what their limit is called."""
WITH_NORM = "clip_grads_with_norm_"

Function = Callable[..., Any]


class Listener(Protocol):
    """Who is told. `listening`: whether anything is to be announced at all."""

    @property
    def listening(self) -> bool: ...

    def grouped(self, optimizer: Any) -> None:
        """A group of parameters was added, the last one; also when the optimizer is made."""

    def zeroing(self, parameters: Iterable[Tensor]) -> None:
        """zero_grad is about to be run."""

    def clipping(self, parameters: list[Tensor], kind: str, limit: Any) -> None:
        """A clip is about to be run: `norm` or `value`, with its limit, which may lie on a device."""

    def clipped(self, norm: Any) -> None:
        """It has found this norm."""

    def scaled(self, scaler: Any) -> None:
        """A loss was multiplied by a loss scale."""

    def unscaled(self, scaler: Any, optimizer: Any) -> None:
        """An optimizer's gradients were divided by it."""

    def skipped(self, scaler: Any, optimizer: Any) -> None:
        """A scaler's step has not called the optimizer's."""

    def step_begins(self, optimizer: Any, depth: int, closure: bool) -> None:
        """`depth` 1 is the outermost of nested steps. With a closure there may be no gradient yet."""

    def evaluated(self, optimizer: Any, depth: int) -> None:
        """The closure has been run within the step: these gradients will be stepped with."""

    def step_ends(self, optimizer: Any, depth: int, closure: bool) -> None:
        """The step is over."""


class Moments:
    """The wrapped functions. `clipping`: within a clip, whose own collectives and inner clips are not the reader's."""

    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self.clipping = 0
        self._depth = 0
        self._steps = 0

    def install(self, patches: Patches) -> None:
        """Wrap everything; a step is announced by PyTorch's own hooks, whatever optimizer it is."""
        optimizer: Any = torch.optim.Optimizer
        patches.wrap(optimizer, "add_param_group", self._grouped)
        patches.wrap(optimizer, "zero_grad", self._zeroed(lambda each: _parameters(each)))
        patches.wrap(nn.Module, "zero_grad", self._zeroed(lambda each: each.parameters()))
        for place in (nn.utils.clip_grad, nn.utils):
            for name, (kind, limit) in CLIPS.items():
                patches.wrap(place, name, self._clip(kind, limit))
            if hasattr(place, WITH_NORM):
                patches.wrap(place, WITH_NORM, self._clip_with_norm)
        scaler: Any = torch.amp.GradScaler
        patches.wrap(scaler, "scale", self._scale)
        patches.wrap(scaler, "unscale_", self._unscale)
        patches.wrap(scaler, "step", self._scaled_step)
        patches.later(optim.register_optimizer_step_pre_hook(self._begins).remove)
        patches.later(optim.register_optimizer_step_post_hook(self._ended).remove)

    @contextmanager
    def within(self) -> Iterator[None]:
        """What steps in here is the inner optimizer of something whose own step no hook announces."""
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1

    def _grouped(self, original: Function, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(optimizer, *args, **kwargs)
        self.listener.grouped(optimizer)
        return result

    def _zeroed(self, of: Callable[[Any], Iterable[Tensor]]) -> Function:
        def zeroed(original: Function, owner: Any, *args: Any, **kwargs: Any) -> Any:
            if self.listener.listening and not self.clipping:
                self.listener.zeroing(of(owner))
            return original(owner, *args, **kwargs)

        return zeroed

    def _clip(self, kind: str, limit: str) -> Function:
        def clip(original: Function, parameters: Any, *args: Any, **kwargs: Any) -> Any:
            if self.clipping or not self.listener.listening:
                return original(parameters, *args, **kwargs)
            given = parameters if isinstance(parameters, Tensor) else list(parameters)
            most = kwargs[limit] if limit in kwargs else args[0]
            self.listener.clipping([given] if isinstance(given, Tensor) else given, kind, most)
            self.clipping += 1
            try:
                norm = original(given, *args, **kwargs)
            finally:
                self.clipping -= 1
            if norm is not None:
                self.listener.clipped(norm)
            return norm

        return clip

    def _clip_with_norm(
        self, original: Function, parameters: Any, max_norm: Any, total_norm: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """The norm is what it is given."""
        if self.clipping or not self.listener.listening:
            return original(parameters, max_norm, total_norm, *args, **kwargs)
        given = parameters if isinstance(parameters, Tensor) else list(parameters)
        self.listener.clipping([given] if isinstance(given, Tensor) else given, "norm", max_norm)
        self.listener.clipped(total_norm)
        return original(given, max_norm, total_norm, *args, **kwargs)

    def _scale(self, original: Function, scaler: Any, outputs: Any) -> Any:
        result = original(scaler, outputs)
        if self.listener.listening and scaler.is_enabled():
            self.listener.scaled(scaler)
        return result

    def _unscale(self, original: Function, scaler: Any, optimizer: Any) -> Any:
        result = original(scaler, optimizer)
        if self.listener.listening:
            self.listener.unscaled(scaler, optimizer)
        return result

    def _scaled_step(self, original: Function, scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        before = self._steps
        result = original(scaler, optimizer, *args, **kwargs)
        if self.listener.listening and scaler.is_enabled() and self._steps == before:
            self.listener.skipped(scaler, optimizer)
        return result

    def _begins(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """`args` begin with the optimizer itself. A closure makes the gradients within the step."""
        self._depth += 1
        self._steps += 1
        depth = self._depth
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if not self.listener.listening:
            return None
        self.listener.step_begins(optimizer, depth, callable(closure))
        if not callable(closure):
            return None

        def evaluating(*more: Any, **named: Any) -> Any:
            result = closure(*more, **named)
            if self.listener.listening:
                self.listener.evaluated(optimizer, depth)
            return result

        if "closure" in kwargs:
            return args, {**kwargs, "closure": evaluating}
        return (args[0], evaluating, *args[2:]), kwargs

    def _ended(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        depth, self._depth = self._depth, max(self._depth - 1, 0)
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if self.listener.listening:
            self.listener.step_ends(optimizer, depth, callable(closure))


def _parameters(optimizer: Any) -> Iterable[Tensor]:
    return (parameter for group in optimizer.param_groups for parameter in group["params"])
