"""What DDP, FSDP2 and hybrid sharding do to `.grad` when a backward ends, and what they communicate for it (measured on
torch 2.13).

DDP: a forward with synchronisation on makes ready for one reduction. The next backward to end, wherever it runs, adds
its gradients to `.grad`, averages `.grad` itself over the ranks, bucket by bucket, and uses the readiness up; every
other backward adds to the rank's own `.grad` and sends nothing.

FSDP2: what counts is the switch when the backward runs. With it off, the full gradients stay on the rank, beside
`.grad`; with it on, they and the new ones are reduced and scattered together, and the shard is added to `.grad`.

Hybrid sharding (FSDP2 on a mesh of groups that hold the same shards): every backward is reduced and scattered inside
its group. With `set_requires_all_reduce` off the group's mean stays beside `.grad`; with it on, it and the new one are
averaged over the groups together, and the shard is added to `.grad`.

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

    @property
    def shards(self) -> int:
        """Ranks over which a backward scatters before anything else: 1 if there is no such step."""

    def forward(self, event: Event) -> None:
        """One forward, on all ranks."""

    def backward(self, event: Event, gradients: Sequence[Fraction]) -> int:
        """One backward, with every rank's own gradient; how many rounds of collectives it takes."""


class DDP:
    """`DistributedDataParallel`: see the module's docstring."""

    shards = 1

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

    def backward(self, event: Event, gradients: Sequence[Fraction]) -> int:
        summed = [(held or 0) + new for held, new in zip(self._grad, gradients, strict=True)]
        reduced, self._ready = self._ready, False
        self._grad = [_mean(summed)] * len(summed) if reduced else list(summed)
        return int(reduced)


class FSDP2:
    """`fully_shard`: see the module's docstring. Every rank's shard of `.grad` has the same value here."""

    shards = 1

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

    def backward(self, event: Event, gradients: Sequence[Fraction]) -> int:
        held = [old + new for old, new in zip(self._waiting, gradients, strict=True)]
        if event.sync:
            self._grad, held = (self._grad or 0) + _mean(held), [Fraction(0)] * len(held)
        self._waiting = held
        return int(event.sync)


class HSDP(FSDP2):
    """Hybrid sharding over `groups` groups of neighbouring ranks: see the module's docstring."""

    def __init__(self, ranks: int, groups: int) -> None:
        super().__init__(ranks)
        self.shards = ranks // groups

    def backward(self, event: Event, gradients: Sequence[Fraction]) -> int:
        return super().backward(event, self.of_groups(gradients)) + (self.shards > 1)

    def of_groups(self, gradients: Sequence[Fraction]) -> list[Fraction]:
        """The mean of its group, for every rank."""
        starts = range(0, len(gradients), self.shards)
        return [mean for at in starts for mean in [_mean(gradients[at : at + self.shards])] * self.shards]


class AddedAfter(HSDP):
    """The same where a group adds its mean to `.grad` at once, and only the last one is averaged over the groups: what
    groups gathered before never meets."""

    def __init__(self, ranks: int, groups: int) -> None:
        super().__init__(ranks, groups)
        self._own: list[Fraction | None] = [None] * ranks

    @property
    def grad(self) -> Sequence[Fraction | None]:
        return self._own

    def backward(self, event: Event, gradients: Sequence[Fraction]) -> int:
        new = self.of_groups(gradients)
        if event.sync:
            new = [_mean(new)] * len(new)
        self._own = [(held or 0) + mean for held, mean in zip(self._own, new, strict=True)]
        return event.sync + (self.shards > 1)


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
