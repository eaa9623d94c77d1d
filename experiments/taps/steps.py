"""Sketches of gradients at the moments between their backward and the optimizer: before a clip, and at the step."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from samestep.experiments.taps.backwards import Backwards
from samestep.experiments.taps.collectives import issued
from samestep.experiments.taps.moments import Moments
from samestep.experiments.taps.patches import Patches
from samestep.experiments.taps.placement import Part, part_of


class Steps:
    """What a step does to gradients, for a listener of the taps. Of nested steps only the outer one counts."""

    def __init__(self, backwards: Backwards) -> None:
        self.backwards = backwards
        self.parameters = backwards.parameters
        self.listener = backwards.listener
        self.moments = Moments(self)
        self.issued = 0

    @property
    def listening(self) -> bool:
        return self.backwards.listening

    def install(self, patches: Patches, alive: Iterable[Any]) -> None:
        """`alive`: what was made before; its optimizers are known from now on."""
        self.moments.install(patches)
        patches.when_imported("deepspeed.runtime.engine", lambda module: self._deepspeed(patches, module))
        for one in alive:
            if issubclass(type(one), torch.optim.Optimizer):
                for group in one.param_groups:
                    self._tag(group["params"])

    def _tag(self, parameters: Iterable[Tensor]) -> None:
        for parameter in parameters:
            self.parameters.tag(parameter)

    # What the moments report

    def grouped(self, optimizer: Any) -> None:
        with self.backwards.guarded():
            self._tag(optimizer.param_groups[-1]["params"])

    def zeroing(self, parameters: Iterable[Tensor]) -> None:
        with self.backwards.guarded():
            self.listener.cleared(self.parameters.known(parameters))

    def clipping(self, parameters: list[Tensor], kind: str, limit: Any) -> None:
        with self.backwards.guarded():
            self.listener.before_clip(self._gradients(self.parameters.known(parameters)))

    def clipped(self, norm: Any) -> None:
        """The sketches before and after tell the factor."""

    def scaled(self, scaler: Any) -> None:
        if getattr(scaler, "_scale", None) is not None:
            with self.backwards.guarded():
                self.listener.scaled(scaler._scale.detach().double().clone())

    def unscaled(self, scaler: Any, optimizer: Any) -> None:
        if scaler.is_enabled():
            with self.backwards.guarded():
                self.listener.unscaled(optimizer)

    def skipped(self, scaler: Any, optimizer: Any) -> None:
        with self.backwards.guarded():
            self.listener.skipped(optimizer)

    def step_begins(self, optimizer: Any, depth: int, closure: bool) -> None:
        """A closure runs its backward within the step: then its end is the moment to look."""
        if depth > 1:
            return
        self.issued = issued()
        if self.backwards.engine.depth:
            self.listener.unsupported("optimizer_in_backward")
        elif isinstance(optimizer, torch.optim.LBFGS):
            self.listener.unsupported("lbfgs")
        elif not closure:
            self._look(optimizer)

    def evaluated(self, optimizer: Any, depth: int) -> None:
        if depth == 1:
            self._look(optimizer)

    def step_ends(self, optimizer: Any, depth: int, closure: bool) -> None:
        if depth <= 1 and issued() > self.issued:
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
        with self.moments.within():
            return original(engine, *args, **kwargs)

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


def _whole_gradients(
    tags: list[int], parameters: list[Tensor], read: Callable[[Tensor], Tensor | None]
) -> Iterator[tuple[int, Tensor]]:
    for tag, parameter in zip(tags, parameters, strict=True):
        if (gradient := read(parameter)) is not None:
            yield tag, gradient
