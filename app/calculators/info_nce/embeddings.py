"""The embeddings of all ranks as the logits of a contrastive loss see them, and who owns which.

Rank r of P owns B_r queries, as many documents, and may ship H_r hard negatives. Candidates are the documents and the
hard negatives of all ranks, rank by rank: [d of rank 0, h of rank 0, d of rank 1, …]. A table is what one direction of
the loss is computed from: queries against all candidates (`q2d`), or documents against all queries (`d2q`).
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Literal

import numpy as np

from samestep.app.calculators.info_nce.softmax import Indices
from samestep.app.calculators.info_nce.tables import Logits, Ranks
from samestep.app.calculators.info_nce.unit_vectors import lengths_of, through_unit, units_of
from samestep.app.calculators.info_nce.vectors import Vectors
from samestep.app.contract.arrays import Floats

Direction = Literal["q2d", "d2q"]


@dataclass(frozen=True, eq=False)
class Embeddings:
    """`q`, `d`, `h` are [vector, dimension], of unit length under cosine; `logits` has s = 1/τ, and b of a sigmoid."""

    counts: tuple[int, ...]
    """B_r."""
    hard_counts: tuple[int, ...]
    """H_r."""
    q: Floats
    d: Floats
    h: Floats
    lengths: dict[str, Floats] | None
    """‖v‖ of the vectors as given, by "q", "d", "h"; None without normalisation."""
    logits: Logits
    directions: dict[Direction, float]
    """Which tables the objective is made of, and their shares."""

    @classmethod
    def of(
        cls, q: Vectors, d: Vectors, hard: Vectors | None, logits: Logits, *, cosine: bool, both_ways: bool
    ) -> "Embeddings":
        """From vectors of one shape, none of them 0 under cosine."""
        h = hard.array if hard is not None and len(hard.array) else np.empty((0, q.dimensions))
        given = {"q": q.array, "d": d.array, "h": h}
        return cls(
            counts=q.counts,
            hard_counts=(0,) * len(q.counts) if hard is None else hard.counts,
            lengths={name: lengths_of(vectors) for name, vectors in given.items()} if cosine else None,
            logits=logits,
            directions={"q2d": 0.5, "d2q": 0.5} if both_ways else {"q2d": 1.0},
            **({name: units_of(vectors) for name, vectors in given.items()} if cosine else given),
        )

    @property
    def scale(self) -> float:
        """s."""
        return self.logits.scale

    @property
    def ranks(self) -> int:
        """P."""
        return len(self.counts)

    @property
    def equal_counts(self) -> bool:
        return len(set(self.counts)) == 1

    @cached_property
    def document_columns(self) -> Indices:
        """The column of each document."""
        return np.arange(len(self.d)) + np.repeat(_before(self.hard_counts), self.counts)

    @cached_property
    def hard_columns(self) -> Indices:
        """The column of each hard negative."""
        return np.arange(len(self.h)) + np.repeat(_before(self.counts) + self.counts, self.hard_counts)

    @cached_property
    def candidates(self) -> Floats:
        """Documents and hard negatives by column."""
        if not len(self.h):
            return self.d
        table = np.empty((len(self.d) + len(self.h), self.d.shape[1]))
        table[self.document_columns], table[self.hard_columns] = self.d, self.h
        return table

    def sides(self, direction: Direction) -> tuple[Floats, Floats]:
        """The rows and the columns of a table."""
        return (self.q, self.candidates) if direction == "q2d" else (self.d, self.q)

    @cached_property
    def _owners(self) -> dict[Direction, Ranks]:
        candidates = tuple(own + hard for own, hard in zip(self.counts, self.hard_counts, strict=True))
        return {"q2d": Ranks(self.counts, candidates), "d2q": Ranks(self.counts, self.counts)}

    def owners(self, direction: Direction) -> Ranks:
        """Who owns the rows and the columns of a table."""
        return self._owners[direction]

    def by_rank(self, values: Floats) -> Floats:
        """Sums over each rank's queries (or documents), along the last axis."""
        if len(self.q) == self.ranks:
            return values
        sums: Floats = np.add.reduceat(values, _before(self.counts), axis=-1)
        return sums

    def to_given(self, name: str, gradient: Floats) -> Floats:
        """The gradient of the vectors as given, from that of the vectors as the logits see them; [..., vector, dim]."""
        if self.lengths is None:
            return gradient
        return through_unit(gradient, getattr(self, name), self.lengths[name][:, None]) + 0.0  # no −0.0


def _before(sizes: tuple[int, ...]) -> Indices:
    """How many there are before each."""
    return np.array([0, *accumulate(sizes[:-1])], dtype=np.intp)
