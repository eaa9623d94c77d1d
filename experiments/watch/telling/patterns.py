"""Which rule gives these weights? Tables of the usual ones, compared cell by cell with what was observed.

`mass[r][k]` is what the objective divides by: the tokens of a cell, n_rk (Σ of class weights where there are any).
A table holds the weight of a unit of mass; the observed one may be a multiple of it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from samestep.app.evidence.bags import Text
from samestep.experiments.audit.judging import scales
from samestep.experiments.watch.records import Array

Table = Sequence[Sequence[float]]


@dataclass(frozen=True)
class Pattern:
    """`code` with the factor on top; `names`: the factor as expressions in P, K, N, the simplest first.

    `usual`: what makes this factor, where more is known than its value.
    """

    code: str
    factor: float
    names: tuple[str, ...] = ()
    usual: Text | None = None

    @property
    def name(self) -> str:
        """The simplest name, or the number."""
        return self.names[0] if self.names else f"{self.factor:.6g}"


def flat(table: Table) -> Array:
    """In rank order."""
    return np.array([value for rank in table for value in rank], dtype=np.float64)


def find(observed: Table, mass: Table, tolerance: float) -> Pattern | None:
    """A rule whose table is proportional to `observed` in every cell that has tokens: one that is equal before others,
    then the first; None if there is none.
    """
    there = flat(mass) > 0
    seen = flat(observed)[there]
    fitting = []
    for code, table in rules(mass):
        ratio = seen / flat(table)[there]
        factor = float(np.median(ratio))
        if factor and float(np.abs(ratio / factor - 1).max()) <= tolerance:
            fitting.append(Pattern(code, factor))
    equal = [each for each in fitting if abs(each.factor - 1) <= tolerance]
    return next(iter(equal or fitting), None)


def rules(mass: Table) -> Iterator[tuple[str, Table]]:
    """The weight of a unit of mass in each cell, by rule; 0 in empty cells."""
    total = sum(map(sum, mass))
    ranks, busy = len(mass), [rank for rank in mass if sum(rank)]
    cells = sum(value > 0 for rank in mass for value in rank)
    yield "global", [[1 / total for _ in rank] for rank in mass]
    yield "replica_equal", [[_over(1, ranks * sum(rank)) for _ in rank] for rank in mass]
    yield "replica_equal", [[_over(1, len(busy) * sum(rank)) for _ in rank] for rank in mass]
    yield "microbatch_equal", [[_over(1, ranks * len(rank) * value) for value in rank] for rank in mass]
    yield "microbatch_equal", [[_over(1, cells * value) for value in rank] for rank in mass]
    yield "microbatch_equal", [[_over(sum(rank), total * len(rank) * value) for value in rank] for rank in mass]
    if len({len(rank) for rank in mass}) == 1:
        steps = [sum(column) for column in zip(*mass, strict=True)]
        yield "microbatch_equal", [[_over(1, len(rank) * steps[k]) for k in range(len(rank))] for rank in mass]
    longest = max(len(rank) for rank in mass)
    if ranks > 1 and longest > 1:  # every microstep's reduction takes the sum so far once more
        yield (
            "reduced_again",
            [[float(ranks) ** (len(rank) - 1 - k) / total for k in range(len(rank))] for rank in mass],
        )


def _over(above: float, below: float) -> float:
    return above / below if below else 0.0


def named(
    code: str, factor: float, ranks: int, full: int, total: float, tolerance: float, scale: float | None
) -> Pattern:
    """The factor on top of a rule with every expression that has its value.

    full   microbatches of a rank in a full window
    scale  the loss scale, where there is one

    A rule that divides by counts already has no N in its factor.
    """
    names = scales.name(factor, ranks, full, total, scale, relative=max(tolerance, 1e-6)).names
    return Pattern(code, factor, names if code == "global" else tuple(name for name in names if "N" not in name))
