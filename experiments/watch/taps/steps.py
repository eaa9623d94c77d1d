"""Zeroing, clipping, unscaling, stepping: what happens to gradients between their backward and the optimizer."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import optimizer as optim

from samestep.experiments.watch.taps.backwards import Backwards
from samestep.experiments.watch.taps.patches import Patches
from samestep.experiments.watch.taps.placement import Part, part_of

CLIPS = ("clip_grad_norm_", "clip_grad_value_", "clip_grads_with_norm_")


class Steps:
    """The wrapped functions round an optimizer's step. Of nested steps (a wrapper's, its inner one's) the outer one."""

    def __init__(self, backwards: Backwards) -> None:
        self.backwards = backwards
        self.parameters = backwards.parameters
        self.listener = backwards.listener
        self.depth = 0
        self.clipping = 0
        self.stepped: list[int] = []
        self.issued = 0

    @property
    def listening(self) -> bool:
        return self.backwards.listening

    def install(self, patches: Patches, alive: Iterable[Any]) -> None:
        """`alive`: what was made before; its optimizers are known from now on."""
        optimizer: Any = torch.optim.Optimizer
        patches.wrap(optimizer, "add_param_group", self._add_group)
        patches.wrap(optimizer, "zero_grad", self._zero_optimizer)
        patches.wrap(nn.Module, "zero_grad", self._zero_module)
        for name in CLIPS:
            for place in (nn.utils.clip_grad, nn.utils):
                if hasattr(place, name):
                    patches.wrap(place, name, self._clip)
        scaler: Any = torch.amp.GradScaler
        patches.wrap(scaler, "scale", self._scale)
        patches.wrap(scaler, "unscale_", self._unscale)
        patches.wrap(scaler, "step", self._scaled_step)
        patches.later(optim.register_optimizer_step_pre_hook(self._begins).remove)
        patches.later(optim.register_optimizer_step_post_hook(self._ended).remove)
        patches.when_imported("deepspeed.runtime.engine", lambda module: self._deepspeed(patches, module))
        for one in alive:
            if issubclass(type(one), torch.optim.Optimizer):
                for group in one.param_groups:
                    self._tag(group["params"])

    def _tag(self, parameters: Iterable[Tensor]) -> None:
        for parameter in parameters:
            self.parameters.tag(parameter)

    def _add_group(self, original: Callable[..., Any], optimizer: Any, group: Any) -> Any:
        result = original(optimizer, group)
        with self.backwards.guarded():
            self._tag(optimizer.param_groups[-1]["params"])
        return result

    def _zero_optimizer(self, original: Callable[..., Any], optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        self._zeroed(p for group in optimizer.param_groups for p in group["params"])
        return original(optimizer, *args, **kwargs)

    def _zero_module(self, original: Callable[..., Any], module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        self._zeroed(module.parameters())
        return original(module, *args, **kwargs)

    def _zeroed(self, parameters: Iterable[Tensor]) -> None:
        if self.listening:
            with self.backwards.guarded():
                self.listener.cleared(self.parameters.known(parameters))

    def _clip(self, original: Callable[..., Any], parameters: Any, *args: Any, **kwargs: Any) -> Any:
        if self.clipping or not self.listening:
            return original(parameters, *args, **kwargs)
        given = parameters if isinstance(parameters, Tensor) else list(parameters)
        with self.backwards.guarded():
            tags = self.parameters.known([given] if isinstance(given, Tensor) else given)
            self.listener.before_clip(self._gradients(tags))
        self.clipping += 1
        try:
            return original(given, *args, **kwargs)
        finally:
            self.clipping -= 1

    def _scale(self, original: Callable[..., Any], scaler: Any, outputs: Any) -> Any:
        result = original(scaler, outputs)
        if self.listening and scaler.is_enabled() and getattr(scaler, "_scale", None) is not None:
            with self.backwards.guarded():
                self.listener.scaled(scaler._scale.detach().double().clone())
        return result

    def _unscale(self, original: Callable[..., Any], scaler: Any, optimizer: Any) -> Any:
        result = original(scaler, optimizer)
        if self.listening and scaler.is_enabled():
            with self.backwards.guarded():
                self.listener.unscaled(optimizer)
        return result

    def _scaled_step(self, original: Callable[..., Any], scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        before = len(self.stepped)
        result = original(scaler, optimizer, *args, **kwargs)
        if self.listening and scaler.is_enabled() and len(self.stepped) == before:
            with self.backwards.guarded():
                self.listener.skipped(optimizer)
        return result

    def _begins(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A closure runs its backward within the step: then its end is the moment to look."""
        self.depth += 1
        if self.depth > 1 or not self.listening:
            return None
        self.stepped.append(id(optimizer))
        self.issued = _issued()
        if self.backwards.depth:
            self.listener.unsupported("optimizer_in_backward")
            return None
        if isinstance(optimizer, torch.optim.LBFGS):
            self.listener.unsupported("lbfgs")
            return None
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if not callable(closure):
            self._look(optimizer)
            return None

        def looking(*more: Any, **named: Any) -> Any:
            result = closure(*more, **named)
            self._look(optimizer)
            return result

        if "closure" in kwargs:
            return args, {**kwargs, "closure": looking}
        return (args[0], looking, *args[2:]), kwargs

    def _ended(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.depth = max(self.depth - 1, 0)
        if self.depth == 0 and self.listening and _issued() > self.issued:
            self.listener.noticed("collectives_in_step", type(optimizer).__name__)

    def _look(self, optimizer: Any) -> None:
        with self.backwards.guarded():
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
            self._tag(parameters)
            tags = self.parameters.known(parameters)
            parts = self._gradients(tags)
            missing = [tag for tag, p in zip(tags, parameters, strict=True) if p.requires_grad and p.grad is None]
            if (scale := getattr(optimizer, "grad_scale", None)) is not None:  # a fused optimizer unscales by itself
                parts = {tag: Part(part.sketch / scale.double(), part.copy) for tag, part in parts.items()}
                self.listener.unscaled(optimizer)
            self.listener.stepping(optimizer, tags, parts, missing)

    def _gradients(self, tags: Iterable[int]) -> dict[int, Part]:
        asked = set(tags) & self.parameters.wanted()
        return {tag: part_of(p.grad) for tag, p in self.parameters.living() if tag in asked and p.grad is not None}

    def _deepspeed(self, patches: Patches, module: Any) -> None:
        """The engine keeps gradients in flat partitions; whole ones are asked of it, which is its own collective."""
        patches.wrap(module.DeepSpeedEngine, "step", self._engine_step)

    def _engine_step(self, original: Callable[..., Any], engine: Any, *args: Any, **kwargs: Any) -> Any:
        if self.listening and engine.is_gradient_accumulation_boundary():
            with self.backwards.guarded():
                self._look_into(engine)
        self.depth += 1
        try:
            return original(engine, *args, **kwargs)
        finally:
            self.depth -= 1

    def _look_into(self, engine: Any) -> None:
        from deepspeed.utils import safe_get_full_grad

        parameters = [parameter for parameter in engine.module.parameters() if parameter.requires_grad]
        self._tag(parameters)
        tags = self.parameters.known(parameters)
        whole = dict(_whole_gradients(tags, parameters, safe_get_full_grad))
        wanted = self.parameters.wanted()
        parts = {tag: part_of(gradient) for tag, gradient in whole.items() if tag in wanted}
        self.listener.noticed("deepspeed", f"ZeRO-{engine.zero_optimization_stage()}")
        self.listener.stepping(engine.optimizer, tags, parts, [tag for tag in tags if tag not in whole])
        self.listener.cleared(tags)


def _issued() -> int:
    """How many collectives this process has issued so far in all its groups: a number that only grows."""
    if not dist.is_initialized():
        return 0
    groups: list[Any] = list(dist.distributed_c10d._world.pg_map)
    return sum(int(group._get_sequence_number_for_group()) for group in groups)


def _whole_gradients(
    tags: list[int], parameters: list[Tensor], read: Callable[[Tensor], Tensor | None]
) -> Iterator[tuple[int, Tensor]]:
    for tag, parameter in zip(tags, parameters, strict=True):
        if (gradient := read(parameter)) is not None:
            yield tag, gradient
