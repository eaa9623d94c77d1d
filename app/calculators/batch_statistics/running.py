"""Running statistics of batch normalisation after a window: x ← (1 - m)·x + m·(statistic), once an update.

m is the momentum; the statistic is the group's mean, or its unbiased variance (torch.nn.BatchNorm1d, 2.13). Without a
loop, K updates are (1 - m)^K·x + m·Σ_k (1 - m)^(K-1-k)·(statistic of k).
"""

from fractions import Fraction

import numpy as np

from samestep.app.calculators.batch_statistics.groups import Values
from samestep.app.calculators.batch_statistics.inputs import Inputs
from samestep.app.calculators.batch_statistics.normalising import Statistics
from samestep.app.mathematics.window import Numbers


def running(values: Values, statistics: Statistics, updates: int, inputs: Inputs) -> tuple[Numbers, Numbers]:
    """Running mean and variance of every rank, (P,), after `updates` of its microsteps."""
    ranks, microsteps = values.shape
    by_cell = statistics.of_cell.reshape(ranks, microsteps)[:, :updates]
    return (
        _after(statistics.means[by_cell], inputs.running_mean, inputs.momentum),
        _after(statistics.unbiased[by_cell], inputs.running_var, inputs.momentum),
    )


def _after(steps: Numbers, start: Fraction, momentum: Fraction) -> Numbers:
    """`steps` (P, K) are the statistics in order."""
    if steps.dtype == object:
        found = np.full(len(steps), start, dtype=object)
        for column in steps.T:
            found = found * (1 - momentum) + column * momentum
        return found
    share, count = float(momentum), steps.shape[1]
    weights = (1 - share) ** np.arange(count - 1, -1, -1)
    return np.asarray((1 - share) ** count * float(start) + share * (steps @ weights))
