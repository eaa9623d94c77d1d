"""Who is told what the taps see."""

from collections.abc import Iterable
from typing import Any, Protocol

from torch import Tensor

from samestep.experiments.taps.backwards import Backward
from samestep.experiments.taps.placement import Part


class Listener(Protocol):
    """Tags are the numbers of parameters, as `parameters.Parameters` gives them."""

    def backward_begins(self, cleared: Iterable[int]) -> None:
        """An outermost backward starts; these parameters have no gradient yet, so what came before is gone."""

    def backward_ended(self, seen: Backward) -> None:
        """It has run to its end."""

    def cleared(self, tags: Iterable[int]) -> None:
        """zero_grad was called."""

    def scaled(self, scale: Tensor) -> None:
        """A loss was multiplied by this loss scale."""

    def unscaled(self, optimizer: Any) -> None:
        """The gradients of this optimizer were divided by the loss scale."""

    def before_clip(self, parts: dict[int, Part]) -> None:
        """Gradients as they are before a clip changes them."""

    def stepping(self, optimizer: Any, tags: Iterable[int], parts: dict[int, Part], missing: Iterable[int]) -> None:
        """An optimizer is about to step with these gradients; `missing` have none."""

    def skipped(self, optimizer: Any) -> None:
        """A loss scaler skipped this optimizer's step."""

    def unsupported(self, what: str) -> None:
        """Something was met under which no number would be right."""

    def noticed(self, what: str, where: str) -> None:
        """Something that a reader of the numbers has to know."""

    def fault(self, error: BaseException) -> None:
        """A tap failed. The reader's script does not notice."""
