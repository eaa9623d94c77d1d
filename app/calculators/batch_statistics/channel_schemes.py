"""Group normalisation, whole and on shards, as the answer and the figure have it."""

import numpy as np

from samestep.app.calculators.batch_statistics.channels import Normalised
from samestep.app.calculators.batch_statistics.groups import farthest
from samestep.app.calculators.batch_statistics.results import (
    SHOWN_POINTS,
    SHOWN_SCOPES,
    GroupNormScheme,
    GroupStatistics,
    Scope,
)
from samestep.app.contract.limits import MAX_LISTED_CELLS
from samestep.app.mathematics.window import Numbers, as_float, as_text


def group_norm(one: Normalised, right: Normalised) -> GroupNormScheme:
    """One way to normalise beside that of all channels."""
    missing = ~np.isfinite(one.values)
    listed = one.values.size <= MAX_LISTED_CELLS
    difference = farthest(one.values, right.values)
    return GroupNormScheme(
        defined=not missing.any(),
        reason="zero_variance" if missing.any() else None,
        matches_reference=difference == 0,
        groups=one.means.shape[1],
        statistics=_group_statistics(one) if listed else None,
        normalised=[
            [None if gap else value for value, gap in zip(row, gaps, strict=True)]
            for row, gaps in zip(one.values.tolist(), missing.tolist(), strict=True)
        ]
        if listed
        else None,
        max_abs_difference=difference,
    )


def _group_statistics(one: Normalised) -> list[list[GroupStatistics]]:
    return [
        [
            GroupStatistics(
                mean=as_float(mean),
                mean_exact=as_text(mean),
                variance=as_float(variance),
                variance_exact=as_text(variance),
            )
            for mean, variance in zip(means, variances, strict=True)
        ]
        for means, variances in zip(one.means, one.variances, strict=True)
    ]


def channel_scopes(samples: Numbers, one: Normalised) -> list[Scope]:
    """The groups of the first samples."""
    parts = samples.reshape(len(samples), one.means.shape[1], -1)
    places = [(s, g) for s in range(parts.shape[0]) for g in range(parts.shape[1])][:SHOWN_SCOPES]
    return [
        Scope(
            label=f"{s}.{g}" if parts.shape[1] > 1 else str(s),
            points=[float(value) for value in parts[s, g, :SHOWN_POINTS]],
            mean=float(one.means[s, g]),
            deviation=float(np.sqrt(float(one.variances[s, g]))),
        )
        for s, g in places
    ]
