"""A window of sequences beside other ways to deal them: what is the same in all, and what one of them changes."""

import numpy as np

from samestep.app.calculators.objective_weights.partition import (
    Cells,
    Name,
    Objective,
    Partition,
    Placement,
    matched,
)
from samestep.app.calculators.objective_weights.weights import TokenWeights
from samestep.app.contract.errors import InputError
from samestep.app.contract.models import Result
from samestep.app.contract.numbers import fraction_text

MAX_WRITTEN_SEQUENCES = 64
"""Partitions of up to this many sequences are written out."""


class Tried(Result):
    """A partition that was compared with the given one; `cells` as typed, null above MAX_WRITTEN_SEQUENCES."""

    partition: Name
    replicas: int
    microsteps: int
    cells: str | None


class Counterexample(Tried):
    """A partition that changes a weight, and the sequence whose weight it changes most. A weight `here` is null where
    the given partition leaves it undefined."""

    sequence: int
    length: int
    token_weight_here: float | None
    token_weight_here_exact: str | None
    token_weight_there: float
    token_weight_there_exact: str


class ComparedWindow:
    """The given partition beside those it is compared with."""

    def __init__(self, sequences: Cells, other: Cells | None, constant: int) -> None:
        self.constant = constant
        self.given = Partition.of("given", sequences)
        self.other = None if other is None else matched(self.given, other)
        if other is not None and self.other is None:
            en, zh = "must hold the very same lengths as sequences", "须与 sequences 含有完全相同的长度"
            raise InputError(en, zh, field="other", code="shape_mismatch")
        compared = [] if self.other is None else [self.other]
        self.compared = [*compared, *self.given.others()] if len(self.given.lengths) else []

    def weights(self, partition: Partition, objective: Objective, placement: Placement) -> TokenWeights | None:
        return TokenWeights.of(partition, objective, placement, self.constant)

    def changing(self, objective: Objective, placement: Placement) -> Partition | None:
        """The first partition with other weights; one that makes them undefined itself is passed over."""
        here = self.given.factors(objective, placement)
        for partition in self.compared:
            there = partition.factors(objective, placement)
            if there is not None and not (here is not None and here.equal(there).all()):
                return partition
        return None

    def shown(self, objective: Objective, placement: Placement) -> Partition | None:
        """The partition to show beside the given one: `other`, else one that changes a weight, else any."""
        return self.other or self.changing(objective, placement) or next(iter(self.compared), None)

    def counterexample(self, objective: Objective, placement: Placement) -> Counterexample | None:
        """What the first partition with other weights changes most."""
        partition = self.changing(objective, placement)
        if partition is None:
            return None
        here, there = (self.weights(p, objective, placement) for p in (self.given, partition))
        assert there is not None
        i = 0 if here is None else int(np.argmax(np.abs(np.log(there.floats() / here.floats()))))
        exact = None if here is None else here.exactly(i)
        return Counterexample(
            **dict(tried(partition)),
            sequence=i,
            length=int(partition.lengths[i]),
            token_weight_here=None if exact is None else float(exact),
            token_weight_here_exact=None if exact is None else fraction_text(exact),
            token_weight_there=float(there.exactly(i)),
            token_weight_there_exact=fraction_text(there.exactly(i)),
        )


def tried(partition: Partition) -> Tried:
    return Tried(
        partition=partition.name,
        replicas=partition.replicas,
        microsteps=partition.microsteps,
        cells=partition.text() if len(partition.lengths) <= MAX_WRITTEN_SEQUENCES else None,
    )
