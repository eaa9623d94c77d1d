"""The usual ways to divide a term, as the weight that each gives to one unit of a cell.

Words and symbols: term t has n = n_rk units in the cell of replica r and microstep k, n_r on replica r and N_t in the
window of P × K cells; n¹ and N_1 are those of the first term. Each recipe is written as

    weight of a unit in cell (r, k) = factor · above_rk / below_rk

without the coefficient, `above` and `below` being counts of cells (or 1 everywhere):

    own_global_count          1/N_t          the right one: Σ c_t·(mean of the term's own units)
    own_cell_mean             1/(P·K·n)      each cell's mean, divided by K, averaged by DDP
    own_cell_mean_summed      1/(P·n)        the same without the division by K
    own_replica_mean          1/(P·n_r)      each replica's mean, averaged by DDP
    first_terms_count         1/N_1          one count for all terms: the main term's
    first_terms_cell          1/(P·K·n¹)     the same, cell by cell
    global_count_without_P    1/(P·N_t)      the global count, and DDP averages once more
    per_token_loss            1/(n·N_1)      cell means, summed over cells, divided by the main count at the end
    per_token_loss_corrected  n¹/(n·N_1)     the same with each cell mean multiplied by the cell's main count

In the last two the first term enters as a sum, 1/N_1. They are what Megatron-Core does with calculate_per_token_loss:
its router multiplies an auxiliary loss by the tokens of the microbatch (megatron/core/transformer/moe/router.py).
"""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import numpy as np

from samestep.app.calculators.loss_terms.inputs import CountedTerm, Counts, Loss
from samestep.app.contract.models import Reason

RecipeName = Literal[
    "own_global_count",
    "own_cell_mean",
    "own_cell_mean_summed",
    "own_replica_mean",
    "first_terms_count",
    "first_terms_cell",
    "global_count_without_P",
    "per_token_loss",
    "per_token_loss_corrected",
]


@dataclass(frozen=True)
class Weighting:
    """What a unit of each cell weighs: factor·above/below, of arrays over cells, None for 1 everywhere."""

    factor: Fraction
    above: Counts | None = None
    below: Counts | None = None


class Units:
    """A term's counts on all levels, beside those of the first term."""

    def __init__(self, loss: Loss, term: CountedTerm) -> None:
        self.replicas, self.microsteps = loss.shape
        self.is_first = term is loss.terms[0]
        self.own = term.counts
        self.first = loss.terms[0].counts
        self.by_replica = np.repeat(self.own.reshape(loss.shape).sum(axis=1), self.microsteps)
        self.total, self.first_total = int(self.own.sum()), int(self.first.sum())
        self.cells = self.replicas * self.microsteps

    def weighting(self, recipe: RecipeName) -> Weighting | Reason:
        """The weights of a recipe, or why it has none."""
        return RECIPES[recipe](self)

    def over_own(self, share: int = 1) -> Weighting | Reason:
        """1/(share·N_t); a term without units has nothing to weigh."""
        return Weighting(Fraction(1, share * self.total) if self.total else Fraction(0))

    def over_first(self) -> Weighting | Reason:
        return Weighting(Fraction(1, self.first_total)) if self.first_total else "zero_count"

    def over_cells(self, below: Counts, factor: Fraction, above: Counts | None = None) -> Weighting | Reason:
        return Weighting(factor, above, below) if below.all() else "empty_cell"

    def per_token(self, above: Counts | None) -> Weighting | Reason:
        if self.is_first or not self.first_total:
            return self.over_first()
        return self.over_cells(self.own, Fraction(1, self.first_total), above)


RECIPES: dict[RecipeName, Callable[[Units], Weighting | Reason]] = {
    "own_global_count": lambda u: u.over_own(),
    "own_cell_mean": lambda u: u.over_cells(u.own, Fraction(1, u.cells)),
    "own_cell_mean_summed": lambda u: u.over_cells(u.own, Fraction(1, u.replicas)),
    "own_replica_mean": lambda u: u.over_cells(u.by_replica, Fraction(1, u.replicas)),
    "first_terms_count": lambda u: u.over_first(),
    "first_terms_cell": lambda u: u.over_cells(u.first, Fraction(1, u.cells)),
    "global_count_without_P": lambda u: u.over_own(u.replicas),
    "per_token_loss": lambda u: u.per_token(None),
    "per_token_loss_corrected": lambda u: u.per_token(u.first),
}
