"""What each backward of a rank adds to its gradient, before any reduction: whole, as the shared taps' hooks hand it on.

A hook on a leaf fires before a wrapper reduces and before anything of the reader's can touch the gradient; of a
parameter that FSDP2 shards it is the whole one that is hooked.
"""

from collections.abc import Iterable, Iterator, Mapping

import torch

from samestep.experiments.audit.running.keeping import local
from samestep.experiments.audit.running.trace import Move
from samestep.experiments.taps.parameters import Parameters
from samestep.experiments.taps.patches import Patches

MOST = 2_000_000
"""Numbers of all parameters up to which contributions, and other copies for an explanation, are kept."""
ALIKE = 1e-6
"""Difference up to which two factors are the same."""


def few(parameters: Iterable[torch.Tensor]) -> bool:
    """Whether there are so few numbers that copies of them are kept."""
    return sum(parameter.numel() for parameter in parameters) <= MOST


class Contributions:
    """Collects between two calls of `take`, until `stop`. `named` are the parameters before the step."""

    def __init__(self, named: Mapping[str, torch.nn.Parameter]) -> None:
        self.types: set[str] = set()
        self._caught: dict[int, torch.Tensor] = {}
        self._parameters = Parameters(self._seen)
        self._patches = Patches()
        self._before: dict[str, torch.Tensor] = {}
        self._few = few(named.values())
        if self._few:
            self._parameters.install(self._patches, (), lambda: None)
            for parameter in named.values():
                self._parameters.tag(parameter)
            self._parameters.hook()

    def _seen(self, tag: int, gradient: torch.Tensor) -> None:
        self.types.add(str(gradient.dtype).removeprefix("torch."))
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

    def moved(self, named: Mapping[str, torch.nn.Parameter], changed: Iterable[str]) -> Move | None:
        """How these parameters have changed since the last call; None where that is not known."""
        before, now = self._before, {name: local(parameter.detach()) for name, parameter in named.items()}
        names = tuple(name for name in changed if name in before)
        factors = [_factor(before[name], now[name]) for name in names if before[name].any() or now[name].any()]
        self._before = {name: tensor.clone() for name, tensor in now.items()} if self._few else {}
        if not names:
            return None
        known = [factor for factor in factors if factor is not None]
        alike = len(known) == len(factors) > 0 and max(known) - min(known) <= ALIKE
        return Move(names, known[0] if alike else None)

    def stop(self) -> None:
        """Catch nothing more."""
        self._parameters.unhook()
        self._patches.undo()


def _factor(before: torch.Tensor, now: torch.Tensor) -> float | None:
    """c with now = c · before; None where there is none."""
    square = float((before * before.conj()).real.sum())
    if before.shape != now.shape or not square:
        return None
    factor = float((before.conj() * now).real.sum()) / square
    return factor if float((now - factor * before).abs().max()) <= ALIKE * float(now.abs().max()) else None
