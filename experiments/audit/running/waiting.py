"""Collectives that were begun with async_op=True, and whether somebody waited for them."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from samestep.experiments.audit.running.keeping import local


class Works:
    """Those that nobody has waited for yet. They are held, so that none is taken for another."""

    def __init__(self) -> None:
        self._open: dict[int, tuple[Any, str, list[torch.Tensor]]] = {}

    def started(self, work: Any, collective: str, tensors: list[torch.Tensor]) -> None:
        """One has begun."""
        self._open[id(work)] = (work, collective, tensors)

    def waited(self, work: Any) -> None:
        """Somebody waits for it, or looks whether it is done."""
        self._open.pop(id(work), None)

    def clear(self) -> None:
        """The step is over."""
        self._open.clear()

    def on(self, parameters: Mapping[str, torch.nn.Parameter]) -> Iterator[tuple[str, str]]:
        """Parameters with a gradient that such a collective works on, with its name."""
        places = {
            local(parameter.grad).untyped_storage().data_ptr(): name
            for name, parameter in parameters.items()
            if parameter.grad is not None and not parameter.grad.is_sparse
        }
        for _, collective, tensors in self._open.values():
            for tensor in tensors:
                if (name := places.get(tensor.untyped_storage().data_ptr())) is not None:
                    yield name, collective
