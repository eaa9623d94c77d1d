"""Whitening and batch normalisation: values less a mean, over a deviation, by groups of cells.

Words and symbols: m and v are the mean and the variance that a scheme has for a cell, ε is `eps`.

    whiten       (x - m)/√(v + ε) or (x - m)/(√v + ε); v with n - 1 (`unbiased`) or n
        global           one group                     what one process with all values does
        per_rank         each rank's own values
        per_microbatch   each cell's own values
        averaged_moments the plain mean of the ranks' means and of their variances

    batch_norm   (x - m)/√(v + ε), v with n
        whole_window     one group
        sync_batch_norm  one group a microstep, over the ranks: accumulation never pools microsteps
        local            each cell's own values
        sync_unweighted  a microstep's plain mean of the ranks' means and variances: their counts are ignored

A group without values is `empty_cell`, one of a single value has no unbiased variance (`one_value`; torch refuses it in
training too), and a variance of 0 without eps cannot divide (`zero_variance`).
"""

from dataclasses import dataclass

import numpy as np

from samestep.app.calculators.batch_statistics.groups import Groups, Ints, Moments, Values, groupings
from samestep.app.contract.arrays import Floats
from samestep.app.contract.models import Reason
from samestep.app.mathematics.window import Numbers


@dataclass(frozen=True)
class Statistics:
    """What a scheme normalises with: `of_cell` (C,) names each cell's group; means and two variances, one a group, with
    the reason why a group has none (None where it has)."""

    of_cell: Ints
    counts: Ints
    means: Numbers
    biased: Numbers
    unbiased: Numbers
    reasons: list[Reason | None]

    def variances(self, unbiased: bool) -> Numbers:
        """With n - 1, or with n."""
        return self.unbiased if unbiased else self.biased

    @property
    def reason(self) -> Reason | None:
        """The first."""
        return next((reason for reason in self.reasons if reason is not None), None)


def pooled(values: Values, groups: Groups, *, needs_two: bool) -> Statistics:
    """Each group's own moments."""
    moments = values.moments(groups)
    return Statistics(groups.of_cell, moments.counts, *_both(moments), reasons=_reasons(moments.counts, needs_two))


def averaged(values: Values, inner: Groups, outer: Groups, *, needs_two: bool) -> Statistics:
    """The plain mean over the inner groups of each outer group, of their means and variances; inner group i belongs to
    outer group i modulo their number."""
    own = values.moments(inner)
    rows = inner.count // outer.count

    def mean(column: Numbers) -> Numbers:
        return np.asarray(column.reshape(rows, outer.count).sum(axis=0) / rows)

    own_reasons = np.array(_reasons(own.counts, needs_two), dtype=object).reshape(rows, outer.count)
    reasons = [next((reason for reason in column if reason is not None), None) for column in own_reasons.T.tolist()]
    counts = own.counts.reshape(rows, outer.count).sum(axis=0)
    means, biased, unbiased = map(mean, _both(own))
    return Statistics(outer.of_cell, counts, means, biased, unbiased, reasons)


def _both(moments: Moments) -> tuple[Numbers, Numbers, Numbers]:
    return moments.means, moments.variances(False), moments.variances(True)


def _reasons(counts: Ints, needs_two: bool) -> list[Reason | None]:
    return ["empty_cell" if not n else "one_value" if n == 1 and needs_two else None for n in counts.tolist()]


def whitening(values: Values, *, unbiased: bool) -> dict[str, Statistics]:
    """The statistics of every scheme of whiten."""
    groups = groupings(values.shape)
    own = {"global": "window", "per_rank": "rank", "per_microbatch": "cell"}
    schemes = {name: pooled(values, groups[by], needs_two=unbiased) for name, by in own.items()}
    return schemes | {
        "averaged_moments": averaged(values, groups["rank"], groups["window"], needs_two=unbiased),
    }


def batch_normalising(values: Values) -> dict[str, Statistics]:
    """The statistics of every scheme of batch_norm; training needs two values a group, for the running variance."""
    groups = groupings(values.shape)
    own = {"whole_window": "window", "sync_batch_norm": "microstep", "local": "cell"}
    schemes = {name: pooled(values, groups[by], needs_two=True) for name, by in own.items()}
    return schemes | {
        "sync_unweighted": averaged(values, groups["cell"], groups["microstep"], needs_two=True),
    }


def deviations(variances: Numbers, eps: float, *, inside: bool = True) -> Floats:
    """What each group divides by."""
    root = np.sqrt(variances.astype(np.float64) + (eps if inside else 0.0))
    return root if inside else root + eps


def normalised(values: Values, statistics: Statistics, divisors: Floats) -> Floats:
    """All values, (V,); the distance from the mean is taken before rounding."""
    of_value = statistics.of_cell[values.cells]
    return np.asarray((values.flat - statistics.means[of_value]).astype(np.float64) / divisors[of_value])
