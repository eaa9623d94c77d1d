"""Weights of what the ranks really backpropagated, however they cut the batch: by samples, by tokens, or not at all.

C_rk is what backward k of rank r added to its gradient, before any reduction. Where both the reference and the
observed gradient consist of these, their coefficients u and c say by what each part counts too much: c/u. With the
number of targets t_rk that the losses counted, the right share of a part is t_rk/T.
"""

from collections.abc import Sequence

import numpy as np

from samestep.app.evidence.bags import Text
from samestep.experiments.audit.judging.case import Case
from samestep.experiments.audit.judging.explaining import reweighting
from samestep.experiments.audit.judging.explaining.reweighting import Span
from samestep.experiments.audit.running.handmade import contributions
from samestep.experiments.audit.running.vectors import Array, Vectors
from samestep.experiments.audit.telling.report import Finding, Weights
from samestep.experiments.audit.telling.wording import finding, listing

CLOSE = 1e-6


def explain_measured(case: Case) -> Finding | None:
    """A finding if reference and observed gradient both consist of what the ranks backpropagated."""
    parts = contributions(case.ranks)
    if not parts or case.gradient is None or case.blurred or len({trace.parts for trace in case.ranks}) > 1:
        return None
    span = Span(parts)
    fits = reweighting.fitting(case.near)
    right, missed = span.against(case.reference.gradient).fit()
    got, apart = span.against(case.gradient).fit()
    if max(missed, apart) > fits or not span.unique or np.any(right <= 0):
        return None
    counts = _targets(case)
    if counts is None:
        return None
    shares = counts / counts.sum()
    observed = shares * got / right
    ranks = case.processes
    shown = Weights(_rows(observed, ranks), _rows(shares, ranks))
    for pattern, weights in reweighting.patterns(shares, counts, ranks):
        factor = float(observed @ weights) / float(weights @ weights)
        if np.max(np.abs(observed - factor * weights)) < max(CLOSE, 100 * fits) * np.max(observed):
            named = case.named(factor) if abs(factor - 1) > CLOSE else None
            return finding(
                case, pattern, names=named.names if named else (), weights=shown, evidence=(MEASURED,), which=""
            )
    return None


MEASURED: Text = {
    "en": "Weights are of what each rank backpropagated, by the targets that its losses counted.",
    "zh": "权重针对各 rank 实际反向传播的部分，按其损失所计的目标数。",
}


def _targets(case: Case) -> Array | None:
    """How many targets each backward counted, rank after rank."""
    found = [count for trace in case.ranks for count in trace.targets[-trace.parts :]]
    if any(count is None for count in found) or not sum(count or 0 for count in found):
        return None
    return np.array([float(count or 0) for count in found])


def _rows(weights: Array, ranks: int) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(float(weight) for weight in row) for row in weights.reshape(ranks, -1))


def who_is_missing(case: Case) -> Text | None:
    """Of ranks that step with different gradients: whose backwards have no part in rank 0's."""
    parts = contributions(case.ranks)
    if not parts or "clipped_gradient" not in case.ranks[0].vectors:
        return None
    span = Span(parts)
    weights, missed = span.against(case.ranks[0].clipped_gradient).fit()
    if missed > reweighting.fitting(case.near) or not span.unique:
        return None
    places = [(trace.rank, k) for trace in case.ranks for k in range(trace.parts)]
    absent = [
        place for place, weight in zip(places, weights, strict=True) if abs(weight) < CLOSE * np.max(np.abs(weights))
    ]
    if not absent:
        return None
    by_rank = {rank: [k for r, k in absent if r == rank] for rank, _ in absent}
    shown = "; ".join(f"rank {rank}: {listing(ks)}" for rank, ks in by_rank.items())
    return {
        "en": f"Rank 0 steps without these microbatches of other ranks: {shown}.",
        "zh": f"rank 0 的更新里没有其他 rank 的这些微批：{shown}。",
    }


def differing(expected: Vectors, others: Sequence[Vectors], allowed: float) -> tuple[list[str], list[str]]:
    """Names of the tensors that are not the same in all, and of those that are."""
    names = list(dict.fromkeys([*expected, *(name for other in others for name in other)]))
    apart = [name for name in names if not all(_same(expected, other, name, allowed) for other in others)]
    return apart, [name for name in names if name not in apart]


def _same(first: Vectors, second: Vectors, name: str, allowed: float) -> bool:
    if name not in first or name not in second:
        return False
    return bool(np.max(np.abs(first[name] - second[name]), initial=0.0) <= allowed)
