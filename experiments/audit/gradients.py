"""Why the gradient differs: one factor, other weights, terms between samples, or rounding."""

from collections.abc import Sequence

import numpy as np

from samestep.app.evidence.bags import Text
from samestep.experiments.audit import causes, parameters, precision, reweighting, scales
from samestep.experiments.audit.case import Case, Cell, padded
from samestep.experiments.audit.compare import SMALL, Difference
from samestep.experiments.audit.crossterms import explain_cross_terms, has_no_cross_terms
from samestep.experiments.audit.hidden_clips import clipped_by_rank, clipped_by_shard
from samestep.experiments.audit.report import Finding, Weights
from samestep.experiments.audit.reweighting import Reweighting, Span
from samestep.experiments.audit.vectors import Array
from samestep.experiments.audit.wording import finding, listing, unknown

Found = dict[str, Difference | None]

UNNAMED: dict[str, Text] = {
    "unknown": {
        "en": "The gradient is a re-weighting of the microbatches' gradients by no rule known here.",
        "zh": "梯度是各微批次梯度的重新加权，但不是这里已知的规则。",
    },
    "reduced_again": {
        "en": "What has been summed over the ranks is summed again after each later microbatch, so early ones "
        "count P times "
        "more. Reduce once, after the last backward of the window.",
        "zh": "已在 rank 之间求和的梯度，在之后每个微批次又被求和一次，越早的微批次权重越大（每次 P 倍）。"
        "应在窗口最后一次反向之后只归约一次。",
    },
}
"""Rules for which there is no cause of their own."""

BELOW_CROSS_TERMS = 1e-3
"""Relative error below which rounding is likelier than a missing term."""


def which_samples(samples: Sequence[int]) -> Text:
    """Samples by number."""
    return {"en": f"sample {listing(samples)}", "zh": f"样本 {listing(samples)}"}


def explain_gradient(case: Case, found: Found) -> Finding:
    """In order: not finite, one factor, a re-weighting, terms between samples, rounding, unknown."""
    expected, got = case.reference.gradient, case.gradient
    assert got is not None
    broken = sorted(name for name in got if not np.isfinite(got[name]).all())
    if broken:
        return _not_finite(case, listing(broken))
    factor, residual = parameters.common_factor(expected, got)
    if residual < case.near and (not case.blurred or case.named(factor).names):
        return scaled(case, factor)
    return (
        _reweighted(case)
        or partly_scaled(case)
        or clipped_by_shard(case)
        or _rounded(case, BELOW_CROSS_TERMS)
        or explain_cross_terms(case, found)
        or _rounded(case, slack=precision.TERMS)
        or unknown(
            case,
            "The gradient is neither a multiple of the right one nor a re-weighting of the microbatches' gradients.",
            "梯度既不是正确值的倍数，也不是各微批次梯度的重新加权。",
            evidence=_limits_met(case),
        )
    )


def _not_finite(case: Case, which: str) -> Finding:
    if np.all(case.counts):
        english, chinese = "not finite where the reference is", "不是有限数，参照却是"
    else:
        english, chinese = (
            "not finite: is the mean of an empty microbatch taken (0/0)",
            "不是有限数：是否对空的微批次取了均值（0/0）",
        )
    return unknown(case, f"The gradient of {which} is {english}.", f"{which} 的梯度{chinese}。")


def _limits_met(case: Case) -> tuple[Text, ...]:
    if case.blurred:
        return (
            {
                "en": "In so coarse a type effective weights cannot be told from rounding: audit in float64.",
                "zh": "精度这么低的类型里，有效权重与舍入分不开：请用 float64 审计。",
            },
        )
    if "clip" in case.ranks[0].events or any(trace.norms for trace in case.ranks):
        return ()
    return (
        {
            "en": 'A hand-written clip hides the gradient before it: say ctx.note("norm", norm) just before scaling.',
            "zh": '手写的裁剪会掩盖裁剪之前的梯度：请在缩放之前调用 ctx.note("norm", norm)。',
        },
    )


def scaled(case: Case, factor: float) -> Finding:
    """All parameters are off by one factor."""
    named = case.named(factor)
    evidence: tuple[Text, ...] = ()
    if named.ambiguous:
        others = ", ".join(named.names)
        evidence = ({"en": f"Here {others} are the same number.", "zh": f"这里 {others} 是同一个数。"},)
    return finding(
        case,
        "scale",
        names=named.names,
        evidence=evidence,
        factor=f"{named.name} = {factor:.6g}" if named.names else f"{factor:.6g}",
        usual=causes.USUAL.get(named.name, causes.NO_USUAL),
    )


def partly_scaled(case: Case) -> Finding | None:
    """Some parameters are right and the others are off by one factor that has a name.

    Where samples depend on each other only scalars, such as a learned temperature, are told so: the local part of a
    whole tensor's gradient may happen to be exactly 1/P.
    """
    got, expected = case.gradient, case.reference.gradient
    assert got is not None
    rows = parameters.table(expected, got, case.atol * max(expected.scale, SMALL), case.near)
    wrong = [row for row in rows if row.status not in ("same", "zero")]
    ratios = [row.ratio for row in wrong if row.status == "scaled" and row.ratio]
    if (
        not wrong
        or len(ratios) < len(wrong)
        or max(ratios) - min(ratios) > max(scales.RELATIVE, case.near) * abs(ratios[0])
    ):
        return None
    named = case.named(ratios[0])
    scalars = all(expected.size(row.name) == 1 for row in wrong)
    if not named.names or not (scalars or has_no_cross_terms(case)):
        return None
    which = listing([row.name for row in wrong])
    evidence: Text = {"en": f"Only {which}; all others are right.", "zh": f"只有 {which}；其余都正确。"}
    usual: Text = {
        "en": "these are reduced or divided once too often or too seldom",
        "zh": "它们多或少归约（或除）了一次",
    }
    return finding(
        case, "scale", names=named.names, evidence=(evidence,), factor=f"{named.name} = {ratios[0]:.6g}", usual=usual
    )


def span_of(case: Case, cells: Sequence[Cell]) -> Span:
    """The gradients of these cells alone."""
    return Span([case.basis(cell) if cell else None for cell in cells])


def reference_weights(case: Case, span: Span, cells: Sequence[Cell]) -> Array | None:
    """The weights with which the reference consists of the cells: n_c / N, or what fits; None if it does not."""
    usual = np.array([case.count(cell) for cell in cells])
    usual = usual / (case.weight or 1.0)
    against = span.against(case.reference.gradient)
    if against.residual(usual) < reweighting.fitting(case.near):
        return usual
    fitted, residual = against.fit()
    return fitted if residual < reweighting.fitting(case.near) and span.unique else None


def _reweighted(case: Case) -> Finding | None:
    got = case.gradient
    assert got is not None
    if case.blurred:
        return None
    for table in dict.fromkeys((case.cells, case.plan.cells)):
        rows = padded(table)
        cells = [cell for row in rows for cell in row]
        span = span_of(case, cells)
        right = reference_weights(case, span, cells)
        if right is None:
            continue
        counts = np.array([float(len(cell)) for cell in cells])
        rule = reweighting.explain(span.against(got), right, counts, case.processes, reweighting.fitting(case.near))
        if rule is None:
            continue
        clipped = clipped_by_rank(case, span, right, rule.weights) if rule.pattern == "unknown" else None
        return clipped or _weights_finding(case, rule, right, rows)
    return None


def _weights_finding(case: Case, rule: Reweighting, right: Array, rows: list[list[Cell]]) -> Finding:
    weights = Weights(_rows(rule.weights, len(rows)), _rows(right, len(rows)))
    shape = (len(rows), len(rows[0]))
    cells = [tuple(int(i) for i in np.unravel_index(cell, shape)) for cell in rule.cells]
    flat = [cell for row in rows for cell in row]
    samples = sorted(sample for cell in rule.cells for sample in flat[cell])
    places = listing([f"rank {rank}, microbatch {k}" for rank, k in cells])
    which: Text = {
        "en": f"{places} (samples {listing(samples)})",
        "zh": f"{places}（样本 {listing(samples)}）",
    }
    evidence: tuple[Text, ...] = ()
    names: tuple[str, ...] = ()
    if abs(rule.factor - 1) > 1e-6 and rule.pattern in ("replica_equal", "microbatch_equal"):
        named = case.named(rule.factor)
        names = named.names
        evidence = (
            {"en": f"All weights are {named.name} times as large on top.", "zh": f"此外所有权重都是 {named.name} 倍。"},
        )
    if rule.pattern in UNNAMED:
        return finding(case, "unknown", weights=weights, evidence=evidence, what=UNNAMED[rule.pattern])
    return finding(case, rule.pattern, names=names, weights=weights, evidence=evidence, which=which)


def _rows(weights: Array, ranks: int) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(float(weight) for weight in row) for row in weights.reshape(ranks, -1))


def _rounded(case: Case, most: float = 1.0, slack: float = precision.SLACK) -> Finding | None:
    got = case.gradient
    assert got is not None
    residual = parameters.residual(case.reference.gradient, got)
    carried = precision.carried_in(case.reference.gradient, got, residual, slack) if residual < most else None
    return finding(case, "precision", type=carried, residual=residual) if carried else None
