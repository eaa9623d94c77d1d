"""What each backward of a rank adds to its gradient, before any reduction: whole, as the shared taps' hooks hand it on.

A hook on a leaf fires before a wrapper reduces and before anything of the reader's can touch the gradient; of a
parameter that FSDP2 shards it is the whole one that is hooked.
"""

from collections.abc import Iterator, Mapping

import torch

from samestep.experiments.taps.parameters import Parameters
from samestep.experiments.taps.patches import Patches

MOST = 2_000_000
"""Numbers of all parameters up to which contributions are kept."""


class Contributions:
    """Collects between two calls of `take`, until `stop`. `named` are the parameters before the step."""

    def __init__(self, named: Mapping[str, torch.nn.Parameter]) -> None:
        self._caught: dict[int, torch.Tensor] = {}
        self._parameters = Parameters(self._seen)
        self._patches = Patches()
        if sum(parameter.numel() for parameter in named.values()) <= MOST:
            self._parameters.install(self._patches, (), lambda: None)
            for parameter in named.values():
                self._parameters.tag(parameter)
            self._parameters.hook()

    def _seen(self, tag: int, gradient: torch.Tensor) -> None:
        whole = (gradient.to_dense() if gradient.is_sparse else gradient).detach()
        before = self._caught.get(tag)
        self._caught[tag] = whole.clone() if before is None else before + whole

    def take(self, named: Mapping[str, torch.nn.Parameter]) -> Iterator[tuple[str, torch.Tensor]]:
        """What was caught since the last time, under the names that the parameters have now."""
        caught, self._caught = self._caught, {}
        for name, parameter in named.items():
            for tag in self._parameters.known([parameter]):
                if tag in caught:
                    yield name, caught[tag]

    def stop(self) -> None:
        """Catch nothing more."""
        self._parameters.unhook()
        self._patches.undo()
