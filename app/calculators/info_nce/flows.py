"""Losses and gradients that gathering schemes really give, after the reduction over ranks.

Every scheme's gradients are sums over the same few tables, with other factors in front. For rank r, row i of its own
and column j of its own, with s = 1/τ,

    ∂/∂x_i = s·rows_r·Σ_j G_ij y_j        ∂/∂y_j = s·columns_r·Σ_i G_ij x_i, i over all rows or the rank's own

so that a table is summed once (`tables`), and a scheme is four factors a rank.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Literal

import numpy as np

from samestep.app.calculators.info_nce.embeddings import Direction, Embeddings
from samestep.app.calculators.info_nce.schemes import Scheme
from samestep.app.calculators.info_nce.tables import Sums, gathered, local
from samestep.app.contract.arrays import Floats

Factor = float | Floats
"""One for all ranks, or one a rank [P]."""
Reaching = Literal["all", "weighted", "own"]
"""What reaches a column: all rows, all rows with the weights 1/B_r, or those of its own rank."""


@dataclass(frozen=True)
class Factors:
    """What one scheme multiplies the sums of a table by; after the reduction, but for `losses`."""

    losses: Factor
    rows: Factor
    columns: Factor
    logits: Factor
    """Of what belongs to no rank: log s and b."""
    reaching: Reaching


@lru_cache(maxsize=128)
def factors_of(scheme: Scheme, counts: tuple[int, ...]) -> Factors:
    """For ranks with these numbers of queries."""
    ranks, count, divisor = len(counts), sum(counts), scheme.reduced_by(len(counts))
    if scheme.whole:
        rate = scheme.rate(count, count, ranks)
        reached_by = ranks if scheme.gather == "grad_sum" else 1
        vectors = float_or_inf(reached_by * rate / divisor)
        return Factors(float_or_inf(rate), vectors, vectors, float_or_inf(ranks * rate / divisor), "all")
    reaching: Reaching = "all" if scheme.gather == "grad_sum" else "own"
    rates = {size: scheme.rate(size, count, ranks) for size in set(counts)}
    if len(set(rates.values())) == 1:
        rate = rates[counts[0]]
        reduced = float_or_inf(rate / divisor)
        return Factors(float_or_inf(rate), reduced, reduced, reduced, reaching)
    losses, each = (np.array([float_or_inf(rates[size] / by) for size in counts]) for by in (1, divisor))
    if reaching == "own":
        return Factors(losses, each, each, each, reaching)
    # unequal rates are those of means, and the table has its sums with the weights 1/B_r
    return Factors(losses, each, float_or_inf(scheme.rate(1, count, ranks) / divisor), each, "weighted")


def float_or_inf(value: Fraction) -> float:
    """inf where float64 cannot hold it."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


class Table:
    """A table's sums, and those of single queries added up: rank by rank [P], and over all."""

    def __init__(self, sums: Sums, by_rank: Callable[[Floats], Floats]) -> None:
        self.sums = sums
        self.losses = by_rank(sums.loss)
        self.loss = float(self.losses.sum())
        self._of_logits = {"log_scale": by_rank(sums.scale_gradient), "bias": by_rank(sums.bias_gradient)}

    def columns(self, reaching: Reaching) -> Floats:
        """Σ_i G_ij x_i over the rows that reach column j, [M, D]."""
        if reaching == "own" and self.sums.own_gradient is not None:
            return self.sums.own_gradient
        gradient: Floats = self.sums.column_gradient[int(reaching == "weighted")]
        return gradient

    def of_logits(self, parameter: Literal["log_scale", "bias"], factor: Factor) -> float:
        """∂/∂log s or ∂/∂b of the rank losses, each times its factor."""
        by_rank = self._of_logits[parameter]
        return factor * float(by_rank.sum()) if isinstance(factor, float) else float(factor @ by_rank)


class Tables:
    """The tables that a set of schemes needs, each summed once."""

    def __init__(self, embeddings: Embeddings, schemes: Sequence[Scheme]) -> None:
        self.embeddings = embeddings
        self._tables: dict[tuple[Direction, str], Table] = {}
        apart = [scheme for scheme in schemes if not scheme.whole and embeddings.ranks > 1]
        self._own = any(scheme.gather in ("detach_keep_local", "detach_all_docs") for scheme in apart)
        mean_of_means = any(s.gather == "grad_sum" and s.normalization == "local_mean" for s in apart)
        counts = np.array(embeddings.counts)
        weighted = mean_of_means and not embeddings.equal_counts
        self._weights = [np.repeat(1.0 / counts, counts)] if weighted else []

    def of(self, direction: Direction, scheme: Scheme) -> Table:
        """The table that the scheme's loss is computed from."""
        kind = "gathered"
        if scheme.gather == "none" and self.embeddings.ranks > 1:
            kind = "local"
        elif scheme.labels == "global_query_index" and direction == "q2d" and len(self.embeddings.h):
            kind = "misread"
        if (direction, kind) not in self._tables:
            self._tables[direction, kind] = Table(self._sum(direction, kind), self.embeddings.by_rank)
        return self._tables[direction, kind]

    def _sum(self, direction: Direction, kind: str) -> Sums:
        given = self.embeddings
        rows, columns = given.sides(direction)
        owners = given.owners(direction)
        if kind == "local":
            return local(rows, columns, given.logits, owners)
        right = given.document_columns if direction == "q2d" and kind == "gathered" else np.arange(len(rows))
        return gathered(rows, columns, right, given.logits, self._weights, owners if self._own else None)


@dataclass(frozen=True)
class Outcomes:
    """Losses and gradients of K schemes; the gradients are those of the vectors as given."""

    rank_losses: Floats
    """[K, P]"""
    q: Floats
    d: Floats
    h: Floats
    """[K, vector, dimension]"""
    log_scale: Floats
    """∂/∂log s, [K]."""
    bias: Floats
    """∂/∂b, [K]; 0 under softmax."""


def outcomes(embeddings: Embeddings, schemes: Sequence[Scheme]) -> Outcomes:
    """All schemes in one set of arrays: what is then done with their gradients is done for all in one step."""
    tables, documents = Tables(embeddings, schemes), embeddings.document_columns
    q = np.zeros((len(schemes), *embeddings.q.shape))
    candidates = np.zeros((len(schemes), *embeddings.candidates.shape))
    losses = np.zeros((len(schemes), embeddings.ranks))
    log_scale, bias = np.zeros(len(schemes)), np.zeros(len(schemes))
    for direction, share in embeddings.directions.items():
        owners, s = embeddings.owners(direction), share * embeddings.scale
        for k, scheme in enumerate(schemes):
            table, factors = tables.of(direction, scheme), factors_of(scheme, embeddings.counts)
            rows = _spread(s * factors.rows, owners.rows) * table.sums.row_gradient
            columns = _spread(s * factors.columns, owners.columns) * table.columns(factors.reaching)
            if direction == "q2d":
                q[k] += rows
                candidates[k] += columns
            else:
                q[k] += columns
                candidates[k, documents] += rows
            losses[k] += share * factors.losses * (table.loss if scheme.whole else table.losses)
            log_scale[k] += share * table.of_logits("log_scale", factors.logits)
            bias[k] += share * table.of_logits("bias", factors.logits)
    for k, scheme in enumerate(schemes):
        if scheme.gather == "detach_all_docs":
            candidates[k] = 0.0
    d = candidates[:, documents] if len(embeddings.h) else candidates
    h = candidates[:, embeddings.hard_columns]
    to_given = embeddings.to_given
    return Outcomes(losses, to_given("q", q), to_given("d", d), to_given("h", h), log_scale, bias)


def _spread(factor: Factor, sizes: Sequence[int]) -> Factor:
    """One factor a rank as one a row or column, to multiply vectors by."""
    return factor if isinstance(factor, float) else np.repeat(factor, sizes)[:, None]
