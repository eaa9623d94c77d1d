"""Look at every operation of one more reference run: does it draw random numbers, does it round to a coarser type?"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from samestep.experiments.audit.taps import State

OFF = ("dropout_p", "p", "dropout")
"""Arguments that switch an operation's chance off when they are zero."""


@dataclass
class Probe:
    """Names of the operations that drew random numbers, and of the floating-point types coarser than the audit's."""

    drawn: list[str] = field(default_factory=list)
    coarser: set[str] = field(default_factory=set)

    @property
    def coarsest(self) -> str | None:
        """The coarsest of the coarser types, by its name; None if there are none."""
        return max(self.coarser, key=lambda name: torch.finfo(getattr(torch, name)).eps, default=None)


class Watching(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Fills a probe while it is entered. What an optimizer does within its step does not count."""

    def __init__(self, probe: Probe, dtype: torch.dtype) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._probe, self._eps = probe, torch.finfo(dtype).eps

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        made = func(*args, **kwargs)
        if State.stepping:
            return made
        if torch.Tag.nondeterministic_seeded in func.tags and not _switched_off(func, args, kwargs):
            name = func.overloadpacket.__name__
            if name not in self._probe.drawn:
                self._probe.drawn.append(name)
        for tensor in _tensors(made):
            if tensor.is_floating_point() and tensor.dim() and torch.finfo(tensor.dtype).eps > self._eps:
                self._probe.coarser.add(str(tensor.dtype).removeprefix("torch."))
        return made


def _switched_off(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    names = [argument.name for argument in func._schema.arguments]
    given = dict(zip(names, args, strict=False)) | dict(kwargs)
    chances = [given.get(name, 0.0) for name in OFF if name in names]
    return bool(chances) and all(isinstance(chance, (int, float)) and chance == 0 for chance in chances)


def _tensors(made: Any) -> Iterator[torch.Tensor]:
    if isinstance(made, torch.Tensor):
        yield made
    elif isinstance(made, (tuple, list)):
        for each in made:
            yield from _tensors(each)
