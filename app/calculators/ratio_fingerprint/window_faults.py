"""How a fault weights the cells of an update window, and what gradient and loss it then leads to.

Words and symbols: cell (r, k) of P ranks and K microsteps has the count n_rk and, where it is known, the mean gradient
g_rk and mean loss of its tokens; N = Σ n_rk. A weighting w_rk gives the gradient Σ w_rk·g_rk. The right one is n_rk/N;

    replica_equal        n_rk / (P·n_r)                 each rank's mean, then the mean over ranks
    microbatch_equal     1 / (P·K)                      every microstep's mean alike
    sample_weighted      s_rk / S                       by numbers of sequences in place of tokens
    dropped_microbatch   n_rk / N without one cell      or n_rk / (N - n) where N leaves it out too
    duplicated_samples   n_rk / N with one cell twice   or n_rk / (N + n) where N counts it twice too
    not_reduced          n_rk / n_r on one rank         a rank's own mean; or P·n_rk / N on it

Gradients may be known by cell or only by rank (its mean over its own tokens). By rank a weighting is known only if it
keeps to the counts within the rank. Without any of them it is known only if it equals the right one, which is what
equal counts do: then no number can show it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from samestep.app.contract.arrays import Floats

_SAME = 1e-12
MAX_SINGLE_CELLS = 64
"""In larger windows the faults of single cells are not tried."""


@dataclass(frozen=True)
class Units:
    """What is known of cells (P·K of them, rank by rank) or of ranks (P): mean gradients (U, d), mean losses (U,)."""

    gradients: Floats | None
    losses: Floats | None

    @property
    def count(self) -> int:
        known = self.losses if self.gradients is None else self.gradients
        return 0 if known is None else len(known)


@dataclass(frozen=True)
class Weighting:
    """A fault in how cells are weighted, and its prediction; None where it cannot be predicted.

    `place` is the rank, or the rank and microstep, that it is about, `places` are several cells; `form` tells variants
    of one fault apart. `alike` says that these counts make it the right weighting. `base` is what the gradient was
    divided by after each microstep, `free` a base that is no whole number; `among` how many of its kind were tried.
    """

    code: str
    place: tuple[int, ...] = ()
    form: str = ""
    gradient: Floats | None = None
    loss: float | None = None
    alike: bool = False
    places: tuple[tuple[int, int], ...] = ()
    base: float | None = None
    free: bool = False
    among: int = 1


@dataclass(frozen=True)
class Counts:
    """A window's counts, (P, K), or (P, 1) where only the ranks' totals are known; `samples` in the same shape."""

    ranks: int
    microsteps: int
    counts: Floats | None
    samples: Floats | None

    @cached_property
    def total(self) -> float:
        return 0.0 if self.counts is None else float(self.counts.sum())

    @cached_property
    def right(self) -> Floats | None:
        """n_rk / N."""
        return self.counts / self.total if self.counts is not None and self.total else None

    def weightings(self) -> Iterator[tuple[str, tuple[int, ...], str, Floats]]:
        """Every fault of weighting, with its weights in the shape of the counts."""
        n, ranks, microsteps = self.counts, self.ranks, self.microsteps
        if n is None or self.right is None:
            return
        by_rank = n.sum(axis=1, keepdims=True)
        own = np.divide(n, by_rank, out=np.zeros_like(n), where=by_rank > 0)
        if ranks > 1:
            yield "replica_equal", (), "", own / ranks
        if microsteps > 1 and n.shape[1] == microsteps:
            yield "microbatch_equal", (), "", np.full(n.shape, 1 / n.size)
        if self.samples is not None and self.samples.any():
            yield "sample_weighted", (), "", self.samples / self.samples.sum()
        if ranks > 1 and ranks <= MAX_SINGLE_CELLS:
            for rank in range(ranks):
                only = np.arange(ranks)[:, None] == rank
                if by_rank[rank, 0] > 0:
                    yield "not_reduced", (rank,), "own_mean", own * only
                    yield "not_reduced", (rank,), "times_P", self.right * ranks * only
        if 1 < n.size <= MAX_SINGLE_CELLS:
            yield from self._single_cells(n)

    def _single_cells(self, n: Floats) -> Iterator[tuple[str, tuple[int, ...], str, Floats]]:
        for place in map(tuple, np.argwhere(n > 0).tolist()):
            one = np.zeros_like(n)
            one[place] = n[place]
            shown = place if n.shape[1] == self.microsteps else place[:1]
            yield "dropped_microbatch", shown, "over_N", (n - one) / self.total
            if self.total > n[place]:
                yield "dropped_microbatch", shown, "over_rest", (n - one) / (self.total - n[place])
            yield "duplicated_samples", shown, "over_N", (n + one) / self.total
            yield "duplicated_samples", shown, "over_more", (n + one) / (self.total + n[place])

    def without_counts(self, units: int) -> Iterator[tuple[str, tuple[int, ...], str, Floats]]:
        """The faults whose weights need no counts, over known units."""
        if units == self.ranks > 1:
            yield "replica_equal", (), "", np.full(units, 1 / units)
            if units <= MAX_SINGLE_CELLS:
                for rank in range(units):
                    yield "not_reduced", (rank,), "own_mean", np.eye(units)[rank]
        elif units > 1:
            yield "microbatch_equal", (), "", np.full(units, 1 / units)

    def on_units(self, weights: Floats, units: int) -> Floats | None:
        """Weights of cells as weights of the known units; None where those do not suffice."""
        if weights.size == units:
            return weights.ravel()
        n = self.counts
        if units != self.ranks or n is None:
            return None
        ratio = np.divide(weights, n, out=np.full(n.shape, np.nan), where=n > 0)
        spread = np.nanmax(np.where(n > 0, ratio, -np.inf), axis=1) - np.nanmin(np.where(n > 0, ratio, np.inf), axis=1)
        kept = np.all((spread <= _SAME * np.nanmax(np.abs(ratio))) | ~(n > 0).any(axis=1))
        return weights.sum(axis=1) if kept and not weights[n == 0].any() else None


def right_values(window: Counts, units: Units) -> tuple[Floats | None, float | None]:
    """The right gradient and loss from the known units; None where counts or units are missing."""
    weights = None if window.right is None else window.on_units(window.right, units.count)
    return _applied(weights, units) if weights is not None else (None, None)


def weightings(window: Counts, units: Units, gradient: Floats | None, loss: float | None) -> list[Weighting]:
    """Every fault of weighting with what it predicts; `gradient` and `loss` are the right ones."""
    found = []
    listed = window.weightings() if window.right is not None else window.without_counts(units.count)
    for code, place, form, weights in listed:
        if window.right is not None and np.allclose(weights, window.right, rtol=0, atol=_SAME):
            found.append(Weighting(code, place, form, gradient, loss, alike=True))
            continue
        on_units = weights if window.right is None else window.on_units(weights, units.count)
        if on_units is not None and units.count:
            found.append(Weighting(code, place, form, *_applied(on_units, units)))
    return found


def _applied(weights: Floats, units: Units) -> tuple[Floats | None, float | None]:
    gradient = None if units.gradients is None else weights @ units.gradients
    return gradient, None if units.losses is None else float(weights @ units.losses)
