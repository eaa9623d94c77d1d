"""Several cells that are missing from an update.

Words and symbols: with c_rk = (n_rk/N)·g_rk, the part of cell (r, k) in the right gradient g* = Σ c_rk, what is left
without a set S of cells is g* - Σ_S c_rk (`over_N`: the divisor counts them still), or that over 1 - Σ_S n_rk/N
(`over_rest`: the divisor lacks them too).
"""

from collections.abc import Iterator

import numpy as np

from samestep.app.calculators.ratio_fingerprint.cell_sets import Cells, sets_of
from samestep.app.calculators.ratio_fingerprint.target import Target
from samestep.app.calculators.ratio_fingerprint.window_faults import Weighting
from samestep.app.contract.arrays import Floats


def lost_cells(right: Floats, parts: Floats, target: Target) -> Iterator[Weighting]:
    """Several cells that never entered the update, by the sets whose loss comes near what was seen."""
    sets = sets_of(right)
    if not sets.count:
        return
    whole, lost, share = parts.sum(axis=0), sets.summed(parts), sets.summed(right.reshape(-1, 1))
    for form, predicted in (("over_N", whole - lost), ("over_rest", (whole - lost) / (1 - share))):
        for index in target.nearest(predicted):
            cells = sets.cells(index)
            if form == "over_N" or not _is_one_rank(cells, right):
                places = tuple((cell // right.shape[1], cell % right.shape[1]) for cell in cells.tolist())
                gradient, among = predicted[index], 2 * sets.count
                yield Weighting("dropped_microbatch", form=form, gradient=gradient, places=places, among=among)


def _is_one_rank(lost: Cells, right: Floats) -> bool:
    """Whether all that is left is one rank's: its own mean, which goes by another name."""
    kept = np.setdiff1d(np.flatnonzero(right), lost)
    rank = kept[0] // right.shape[1]
    return bool((kept // right.shape[1] == rank).all()) and len(kept) == np.count_nonzero(right[rank])
