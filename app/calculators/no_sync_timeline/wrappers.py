"""What DDP and FSDP2 do to `.grad` when a backward ends, and what they communicate for it (measured on torch 2.13).

DDP: a forward with synchronisation on makes ready for one reduction. The next backward to end, wherever it runs, adds
its gradients to `.grad`, averages `.grad` itself over the ranks, bucket by bucket, and uses the readiness up; every
other backward adds to the rank's own `.grad` and sends nothing.

FSDP2: what counts is the switch when the backward runs. With it off, the full gradients stay on the rank, beside
`.grad`; with it on, they and the new ones are reduced and scattered together, and the shard is added to `.grad`.

Buckets of DDP: parameters are added to a bucket until it has `bucket_cap_mb` MiB; by default the first closes at
1 MiB, the others at 25. They go in the order in which gradients arrived in the first backward, here from the last
parameter to the first; with `find_unused_parameters` in the order of definition, from the last bucket to the first.
"""

from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Protocol

from samestep.app.calculators.no_sync_timeline.programs import Event

MIB = 2**20
FIRST_BUCKET = MIB
"""Bytes at which DDP's first bucket closes (`torch.distributed._DEFAULT_FIRST_BUCKET_BYTES`)."""
OTHER_BUCKETS = 25 * MIB


class Replicas(Protocol):
    """The gradients of one parameter on all ranks, over a window."""

    @property
    def grad(self) -> Sequence[Fraction | None]:
        """`.grad` on every rank; None where there is none yet."""

    @property
    def waiting(self) -> Sequence[Fraction]:
        """What every rank holds beside `.grad`, not reduced."""

    def forward(self, event: Event) -> None:
        """One forward, on all ranks."""

    def backward(self, event: Event, gradients: Sequence[Fraction]) -> bool:
        """One backward, with every rank's own gradient; whether it communicates."""


class DDP:
    """`DistributedDataParallel`: see the module's docstring."""

    def __init__(self, ranks: int) -> None:
        self._grad: list[Fraction | None] = [None] * ranks
        self._ready = False

    @property
    def grad(self) -> Sequence[Fraction | None]:
        return self._grad

    @property
    def waiting(self) -> Sequence[Fraction]:
        return [Fraction(0)] * len(self._grad)

    def forward(self, event: Event) -> None:
        self._ready = self._ready or event.sync

    def backward(self, event: Event, gradients: Sequence[Fraction]) -> bool:
        summed = [(held or 0) + new for held, new in zip(self._grad, gradients, strict=True)]
        reduced, self._ready = self._ready, False
        self._grad = [_mean(summed)] * len(summed) if reduced else list(summed)
        return reduced


class FSDP2:
    """`fully_shard`: see the module's docstring. Every rank's shard of `.grad` has the same value here."""

    def __init__(self, ranks: int) -> None:
        self._grad: Fraction | None = None
        self._waiting = [Fraction(0)] * ranks

    @property
    def grad(self) -> Sequence[Fraction | None]:
        return [self._grad] * len(self._waiting)

    @property
    def waiting(self) -> Sequence[Fraction]:
        return self._waiting

    def forward(self, event: Event) -> None:
        pass

    def backward(self, event: Event, gradients: Sequence[Fraction]) -> bool:
        held = [old + new for old, new in zip(self._waiting, gradients, strict=True)]
        if event.sync:
            self._grad, held = (self._grad or 0) + _mean(held), [Fraction(0)] * len(held)
        self._waiting = held
        return event.sync


def _mean(values: Sequence[Fraction]) -> Fraction:
    return sum(values, start=Fraction(0)) / len(values)


def buckets(sizes: Sequence[int], element_size: int, cap: Fraction | None, find_unused: bool) -> list[int]:
    """Elements of every bucket, in the order in which they are reduced; `cap` is in MiB, None torch's own."""
    limits = (FIRST_BUCKET, OTHER_BUCKETS) if cap is None else (cap * MIB,)
    filled: list[int] = []
    held = 0
    for size in sizes if find_unused else reversed(sizes):
        held += size
        if held * element_size >= limits[min(len(filled), len(limits) - 1)]:
            filled.append(held)
            held = 0
    if held:
        filled.append(held)
    return filled[::-1] if find_unused else filled


def agree(values: Iterable[Fraction | None]) -> bool:
    """Whether all ranks hold the same."""
    return len(set(values)) == 1
