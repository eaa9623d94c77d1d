"""Group normalisation of samples whose channels lie on several shards.

A sample has C channels in `groups` groups of neighbours; each is normalised by its own mean and biased variance. A
shard with C/shards channels that normalises by itself has max(1, groups/shards) groups of its own. The statistics of a
sample never depend on the batch, only on which channels are seen together.
"""

from dataclasses import dataclass

import numpy as np

from samestep.app.contract.arrays import Floats
from samestep.app.contract.errors import InputError
from samestep.app.mathematics.window import Numbers


@dataclass(frozen=True)
class Normalised:
    """Means and variances (S, G), normalised samples (S, C), NaN where a variance of 0 cannot divide."""

    means: Numbers
    variances: Numbers
    values: Floats


def groups_of_a_shard(channels: int, groups: int, shards: int) -> int:
    """How many groups each shard has; InputError where channels or groups cannot be divided."""
    for name, divisor, of in (("groups", groups, channels), ("shards", shards, channels)):
        if of % divisor:
            en, zh = f"must divide the {of:,} channels", f"须整除通道数 {of:,}"
            raise InputError(en, zh, field=name, code="multiple_of")
    if groups > shards and groups % shards:
        en, zh = f"must divide the {groups:,} groups", f"须整除组数 {groups:,}"
        raise InputError(en, zh, field="shards", code="multiple_of")
    own = max(1, groups // shards)
    if channels // shards % own:
        en, zh = "leave a shard channels that its groups do not divide", "使每片的通道数不能被它的组数整除"
        raise InputError(en, zh, field="shards", code="multiple_of")
    return own


def normalised(samples: Numbers, groups: int, eps: float) -> Normalised:
    """Every sample (S, C) in `groups` groups of neighbouring channels."""
    parts = samples.reshape(len(samples), groups, -1)
    size = parts.shape[2]
    means = parts.sum(axis=2) / size
    distances = parts - means[:, :, None]
    variances = (distances * distances).sum(axis=2) / size
    roots = np.sqrt(variances.astype(np.float64) + eps)[:, :, None]
    with np.errstate(all="ignore"):
        values = distances.astype(np.float64) / roots
    return Normalised(means, variances, values.reshape(samples.shape))
