"""Runs on one process that an explanation asks for: parts of the batch, one term of the loss, moved parameters."""

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

import torch

from samestep.experiments.audit.failure import ReaderError
from samestep.experiments.audit.running import perform
from samestep.experiments.audit.running.perform import Variation
from samestep.experiments.audit.running.probe import Probe, Watching
from samestep.experiments.audit.running.reader import Built, blamed, load
from samestep.experiments.audit.running.trace import Trace
from samestep.experiments.audit.running.vectors import Array, Vectors

Cell = tuple[int, ...]
Term = str | None


class Variations:
    """Runs are made when they are asked for, and kept on disk."""

    def __init__(
        self, place: Path, folder: Path, dtype: torch.dtype, device: torch.device, begin: Trace | None = None
    ) -> None:
        self._place, self._folder, self.dtype, self._device, self._begin = place, folder, dtype, device, begin
        self._made: dict[tuple[Cell | None, Term], Trace] = {}
        self._runs = 0
        self.left_out: set[Cell] = set()

    def run(self, variation: Variation) -> Trace:
        """One run; raises ReaderError."""
        self._runs += 1
        folder = self._folder / f"variation{self._runs}"
        return perform.vary(self._place, self.dtype, self._device, folder, variation)

    def trace(self, part: Cell | None, term: Term = None) -> Trace:
        """A run of these samples alone, of this term alone."""
        if (part, term) not in self._made:
            self._made[part, term] = self.run(Variation(part, term=term, begin=self._begin))
        return self._made[part, term]

    def gradient(self, part: Cell | None, term: Term = None) -> Vectors | None:
        """Its gradient; None where it is not finite: such a part cannot be run alone (and is remembered)."""
        try:
            trace = self.trace(part, term)
        except ReaderError:
            trace = None
        found = trace.vectors.get("gradient") if trace else None
        if found is not None and found.finite:
            return found
        if part is not None:
            self.left_out.add(part)
        return None

    @cached_property
    def probe(self) -> Probe:
        """What one more reference run does, operation by operation; empty if it cannot be run so."""
        probe = Probe()
        try:
            self.run(Variation(begin=self._begin, under=lambda: Watching(probe, self.dtype)))
        except ReaderError:  # a step that a dispatch mode disturbs is judged without what the probe would have seen
            return Probe()
        return probe

    def losses(self, move: Mapping[str, Array]) -> list[float]:
        """The losses that are differentiated after the parameters were moved."""
        return self.run(Variation(begin=self._begin, move=move)).losses

    def built(self) -> Built:
        """What build() makes, fresh."""
        return load(self._place, self.dtype).built()

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """One step of an optimizer of the reader's; raises ReaderError."""
        with blamed(self._place, "optimizer.step() failed"):
            optimizer.step()
