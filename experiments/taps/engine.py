"""The two entry points of autograd, wrapped: `torch.autograd.backward` and `torch.autograd.grad`."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

from samestep.experiments.taps.patches import Patches

ROOTS = {"backward": "tensors", "grad": "outputs"}
"""What each calls its first argument."""


class Around(Protocol):
    """What is entered for one call: `name` is backward or grad, `more` what was given after the roots."""

    def __call__(
        self, name: str, roots: Any, more: tuple[Any, ...], named: dict[str, Any]
    ) -> AbstractContextManager[None, bool | None]: ...


class Engine:
    """Counts how many calls are running in `depth`, and enters `around` for each before it counts it.

    A call within a call belongs to it: reentrant checkpointing runs a backward inside the backward.
    """

    def __init__(self, around: Around) -> None:
        self.depth = 0
        self._around = around

    def install(self, patches: Patches) -> None:
        for name in ROOTS:
            patches.wrap(torch.autograd, name, self._wrapper(name))

    def _wrapper(self, name: str) -> Callable[..., Any]:
        def wrapper(original: Callable[..., Any], *given: Any, **named: Any) -> Any:
            roots = given[0] if given else named.get(ROOTS[name])
            with self._around(name, roots, given[1:], named):
                self.depth += 1
                try:
                    return original(*given, **named)
                finally:
                    self.depth -= 1

        return wrapper
