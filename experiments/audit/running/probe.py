"""Look at every operation of one more reference run: does it draw random numbers, does it round to a coarser type?"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from samestep.experiments.audit.running.taps import State

OFF = ("dropout_p", "p", "dropout")
"""Arguments that switch an operation's chance off when they are zero."""


@dataclass
class Probe:
    """Names of the operations that drew random numbers, and of the floating-point types coarser than the audit's.

    coarser  types that lead to the gradient: met before the last backward ended, and not in a hook that reduces
    """

    drawn: list[str] = field(default_factory=list)
    coarser: set[str] = field(default_factory=set)
    since: set[str] = field(default_factory=set)

    def backward_ended(self) -> None:
        """What was met so far leads to a gradient."""
        self.coarser |= self.since
        self.since.clear()

    @property
    def coarsest(self) -> str | None:
        """The coarsest of the coarser types, by its name; None if there are none."""
        return max(self.coarser, key=lambda name: torch.finfo(getattr(torch, name)).eps, default=None)


class Watching(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Fills a probe while it is entered; what an optimizer does within its step, or a reduction, does not count."""

    def __init__(self, probe: Probe, dtype: torch.dtype) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._probe, self._eps, self._in_backward = probe, torch.finfo(dtype).eps, False

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        if self._in_backward:
            self._probe.backward_ended()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._in_backward and not State.backward_depth:
            self._probe.backward_ended()
        self._in_backward = State.backward_depth > 0
        made = func(*args, **kwargs)
        if State.stepping or State.reducing:
            return made
        if torch.Tag.nondeterministic_seeded in func.tags and not _switched_off(func, args, kwargs):
            name = func.overloadpacket.__name__
            if name not in self._probe.drawn:
                self._probe.drawn.append(name)
        for tensor in _tensors(made):
            if tensor.is_floating_point() and tensor.dim() and torch.finfo(tensor.dtype).eps > self._eps:
                self._probe.since.add(str(tensor.dtype).removeprefix("torch."))
        return made


def _switched_off(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    arguments = func._schema.arguments
    given = dict(zip((argument.name for argument in arguments), args, strict=False)) | dict(kwargs)
    chances = [
        given.get(argument.name, argument.default_value if argument.has_default_value() else None)
        for argument in arguments
        if argument.name in OFF
    ]
    return bool(chances) and all(isinstance(chance, (int, float)) and chance == 0 for chance in chances)


def _tensors(made: Any) -> Iterator[torch.Tensor]:
    if isinstance(made, torch.Tensor):
        yield made
    elif isinstance(made, (tuple, list)):
        for each in made:
            yield from _tensors(each)
