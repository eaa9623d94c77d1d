"""What each backward of a rank adds to its gradient, before any reduction: caught where the leaf receives it.

A hook on a leaf fires before a wrapper reduces and before anything of the reader's can touch the gradient. Sharded
parameters are replaced by their wrapper, so that nothing is caught of them.
"""

from collections.abc import Callable, Iterator

import torch
from torch.utils.hooks import RemovableHandle

MOST = 2_000_000
"""Numbers of all parameters up to which contributions are kept."""


class Contributions:
    """Collects between two calls of `take`."""

    def __init__(self, named: dict[str, torch.nn.Parameter]) -> None:
        self._caught: dict[str, torch.Tensor] = {}
        self._handles: list[RemovableHandle] = []
        if sum(parameter.numel() for parameter in named.values()) > MOST:
            return
        for name, parameter in named.items():
            if parameter.requires_grad and parameter.is_leaf:
                self._handles.append(parameter.register_hook(self._catcher(name)))  # type: ignore[no-untyped-call]

    def _catcher(self, name: str) -> Callable[[torch.Tensor], None]:
        def catch(gradient: torch.Tensor) -> None:
            if gradient.is_sparse:
                gradient = gradient.to_dense()
            before = self._caught.get(name)
            self._caught[name] = gradient.detach().clone() if before is None else before + gradient.detach()

        return catch

    def take(self) -> Iterator[tuple[str, torch.Tensor]]:
        """What was caught since the last time."""
        caught, self._caught = self._caught, {}
        yield from caught.items()

    def stop(self) -> None:
        """Catch nothing more."""
        for handle in self._handles:
            handle.remove()
