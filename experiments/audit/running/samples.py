"""Which samples the outermost forwards of an update were given, and which of them each backward is about."""

from collections import Counter

import torch

from samestep.experiments.audit.running.rows import Rows
from samestep.experiments.audit.running.trace import Trace


class Samples:
    """Collects between two backwards; what was consumed goes into the trace at once."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self._got: dict[str, list[int] | None] = {}

    def feed(self, given: list[torch.Tensor], trace: Trace) -> None:
        """An outermost forward gets these tensors; those with a gradient are results of other forwards."""
        candidates = [tensor for tensor in given if not tensor.requires_grad and tensor.dim() > 0]
        matches = [match for tensor in candidates if (match := self._match(tensor))]
        if candidates and not matches:
            trace.unrecognised = True
        for name, got, samples in matches:
            trace.consumed.setdefault(name, Counter()).update(got)
            before = self._got.get(name, [])
            self._got[name] = None if samples is None or before is None else before + samples

    def _match(self, tensor: torch.Tensor) -> tuple[str, list[str], list[int] | None] | None:
        """By its memory, else by its content."""
        if dealt := self.rows.dealt(tensor):
            name, samples = dealt
            return name, self.rows.digests_of(name, samples), samples
        if match := self.rows.matched(tensor):
            name, got = match
            return name, got, self.rows.samples(name, got)
        return None

    def of_backward(self) -> list[int] | None:
        """The samples since the last backward; None if some row is none of data()'s, or it cannot be told which."""
        known = [samples for samples in self._got.values() if samples is not None]
        self._got = {}
        return max(known, key=len) if known else None
