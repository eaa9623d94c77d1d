"""Sequences dealt to the cells of a window, P replicas × K microsteps, and the factor that a mean gives to each cell.

Cell (r, k) holds B_rk sequences and T_rk tokens; sequence i has L_i ≥ 1 tokens. A mean is taken over groups of cells:
the whole `window` (one group), each `replica`, each `microstep` across the replicas, or each `microbatch`, which is one
cell; then the mean of the groups is taken. With G groups, of B_g sequences and T_g tokens, a token's weight is

    token_mean        1 / (G·T_g)
    sequence_mean     1 / (G·B_g)          / L_i
    constant          1 / (G·B_g)          / C
    sample_weighted   B_rk / (G·B_g·T_rk)

The part before the last column is the cell's factor: an exact fraction of whole numbers below 2^63 (see the limits),
which is all that a partition changes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Cells = tuple[tuple[tuple[int, ...], ...], ...]
"""[replica][microstep][place in the cell]: lengths."""

Objective = Literal["token_mean", "sequence_mean", "constant", "sample_weighted"]
Placement = Literal["window", "replica", "microstep", "microbatch"]
Name = Literal[
    "given",
    "other",
    "one_cell",
    "shortest_apart_replicas",
    "shortest_apart_microsteps",
    "each_its_replica",
    "each_its_microstep",
    "dealt_in_turns",
]
OBJECTIVES: tuple[Objective, ...] = ("token_mean", "sequence_mean", "constant", "sample_weighted")
PLACEMENTS: tuple[Placement, ...] = ("window", "replica", "microstep", "microbatch")

MAX_SEQUENCES = 100_000
MAX_TOKENS = 2**31
"""With both, and at most MAX_SEQUENCES cells, every denominator stays below 2^63."""

_AXES: dict[Placement, tuple[int, ...]] = {"window": (0, 1), "replica": (1,), "microstep": (0,), "microbatch": ()}


class Factors(NamedTuple):
    """One exact fraction a sequence, in lowest terms: (n,) and (n,)."""

    numerator: Ints
    denominator: Ints

    def equal(self, other: "Factors") -> NDArray[np.bool_]:
        """Where both are the same: (n,)."""
        same: NDArray[np.bool_] = (self.numerator == other.numerator) & (self.denominator == other.denominator)
        return same


@dataclass(frozen=True, eq=False)
class Partition:
    """Where the sequences are: `lengths` and the flat `cell` of each, (n,), in the order of the given window."""

    name: Name
    replicas: int
    microsteps: int
    lengths: Ints
    cell: Ints

    @classmethod
    def of(cls, name: Name, cells: Cells) -> "Partition":
        """The sequences in reading order."""
        flat = list(chain.from_iterable(cells))
        lengths = np.array(list(chain.from_iterable(flat)), dtype=np.int64)
        cell = np.repeat(np.arange(len(flat)), list(map(len, flat)))
        return cls(name, len(cells), len(cells[0]), lengths, cell)

    @cached_property
    def counts(self) -> Ints:
        """B_rk: (P, K)."""
        return self._shaped(np.bincount(self.cell, minlength=self.replicas * self.microsteps))

    @cached_property
    def tokens(self) -> Ints:
        """T_rk: (P, K)."""
        held = np.zeros(self.replicas * self.microsteps, dtype=np.int64)
        np.add.at(held, self.cell, self.lengths)
        return self._shaped(held)

    def _shaped(self, values: NDArray[np.integer]) -> Ints:
        return values.astype(np.int64).reshape(self.replicas, self.microsteps)

    def factors(self, objective: Objective, placement: Placement) -> Factors | None:
        """The factor of every sequence's cell; None where a mean is taken over nothing."""
        counts = self.counts.sum(axis=_AXES[placement], keepdims=True)
        emptiable = self.counts if objective == "sample_weighted" else counts
        if not emptiable.all():
            return None
        if objective == "token_mean":
            below = self.tokens.sum(axis=_AXES[placement], keepdims=True)
        else:
            below = counts * self.tokens if objective == "sample_weighted" else counts
        above = self.counts if objective == "sample_weighted" else np.ones_like(below)
        below = below * counts.size
        common = np.gcd(above, below)
        shape = self.counts.shape
        return Factors(*(np.broadcast_to(part // common, shape).ravel()[self.cell] for part in (above, below)))

    def text(self) -> str:
        """The lengths as they are typed: `4+2,8;3,0`."""
        held: list[list[str]] = [[] for _ in range(self.replicas * self.microsteps)]
        for length, cell in zip(self.lengths.tolist(), self.cell.tolist(), strict=True):
            held[cell].append(str(length))
        cells = ["+".join(lengths) or "0" for lengths in held]
        rows = (cells[start : start + self.microsteps] for start in range(0, len(cells), self.microsteps))
        return ";".join(map(",".join, rows))

    def others(self) -> Iterator["Partition"]:
        """Other ways to deal the same sequences, no cell empty: a mean that any of them changes is no objective of the
        sequences alone. For two or more sequences each placement meets one group and several in them."""
        n = len(self.lengths)
        together = np.zeros(n, dtype=np.int64)
        if n > 1:
            apart, each = together.copy(), np.arange(n)
            apart[np.argmin(self.lengths)] = 1
            yield Partition("shortest_apart_replicas", 2, 1, self.lengths, apart)
            yield Partition("shortest_apart_microsteps", 1, 2, self.lengths, apart)
            yield Partition("each_its_replica", n, 1, self.lengths, each)
            yield Partition("each_its_microstep", 1, n, self.lengths, each)
        yield Partition("one_cell", 1, 1, self.lengths, together)
        if n >= self.counts.size:
            in_turns = np.empty(n, dtype=np.int64)
            in_turns[np.argsort(-self.lengths, kind="stable")] = np.arange(n) % self.counts.size
            yield Partition("dealt_in_turns", self.replicas, self.microsteps, self.lengths, in_turns)


def matched(given: Partition, cells: Cells) -> Partition | None:
    """The given sequences in other cells: the first of a length is the first of that length there, and so on. None
    where the lengths are not the same ones."""
    there = Partition.of("other", cells)
    here_order, there_order = (np.argsort(p.lengths, kind="stable") for p in (given, there))
    if not np.array_equal(given.lengths[here_order], there.lengths[there_order]):
        return None
    cell = np.empty_like(there.cell)
    cell[here_order] = there.cell[there_order]
    return Partition("other", there.replicas, there.microsteps, given.lengths, cell)


def shape_of(cells: Sequence[Sequence[object]]) -> tuple[int, int] | None:
    """P and K; None where the rows differ in length or have none."""
    widths = {len(row) for row in cells}
    return (len(cells), widths.pop()) if len(widths) == 1 and 0 not in widths else None
