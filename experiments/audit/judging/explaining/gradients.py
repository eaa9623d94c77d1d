"""Why the gradient differs: one factor, other weights, terms between samples, or rounding."""

from collections.abc import Callable, Sequence

import numpy as np

from samestep.app.evidence.bags import Text
from samestep.experiments.audit.judging import parameters, precision, scales
from samestep.experiments.audit.judging.case import Case, padded
from samestep.experiments.audit.judging.compare import Difference
from samestep.experiments.audit.judging.explaining import reweighting
from samestep.experiments.audit.judging.explaining.carrying import carried_over
from samestep.experiments.audit.judging.explaining.constants import penalty_in_gradient
from samestep.experiments.audit.judging.explaining.crossterms import explain_cross_terms, has_no_cross_terms
from samestep.experiments.audit.judging.explaining.hidden_clips import clipped_by_rank, clipped_by_shard
from samestep.experiments.audit.judging.explaining.measured import explain_measured
from samestep.experiments.audit.judging.explaining.moving import moved_inside, moved_somehow
from samestep.experiments.audit.judging.explaining.reweighting import Reweighting, Span
from samestep.experiments.audit.judging.explaining.terms import explain_terms
from samestep.experiments.audit.running.handmade import clipped_before_division, clipped_by_hand, lost_in_reduction
from samestep.experiments.audit.running.variations import Cell
from samestep.experiments.audit.running.vectors import Array
from samestep.experiments.audit.telling import factors
from samestep.experiments.audit.telling.report import Finding, Weights
from samestep.experiments.audit.telling.wording import finding, listing, number, unknown

Found = dict[str, Difference | None]

UNNAMED: Text = {
    "en": "The gradient is a re-weighting of the microbatches' gradients by no rule known here.",
    "zh": "梯度是各微批梯度的重新加权，但不是这里已知的规则。",
}

BELOW_CROSS_TERMS = 1e-3
"""Relative error below which rounding is likelier than a missing term."""
CONTRAST = 3.0
"""By how much a rule has to explain a coarse gradient better than every other."""


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
        return clipped_before_division(case) or clipped_by_hand(case, factor) or scaled(case, factor)
    reasons: tuple[Callable[[], Finding | None], ...] = (
        lambda: _reweighted(case),
        lambda: partly_scaled(case),
        lambda: _partly_reweighted(case),
        lambda: clipped_by_shard(case),
        lambda: moved_inside(case),
        lambda: _rounded(case, BELOW_CROSS_TERMS),
        lambda: explain_terms(case),
        lambda: penalty_in_gradient(case),
        lambda: lost_in_reduction(case),
        lambda: explain_cross_terms(case, found),
        lambda: explain_measured(case),
        lambda: moved_somehow(case),
        lambda: carried_over(case),
        lambda: _rounded(case, slack=precision.TERMS),
    )
    for reason in reasons:
        if explained := reason():
            return explained
    return unknown(
        case,
        "The gradient is neither a multiple of the right one nor a re-weighting of the microbatches' gradients.",
        "梯度既不是正确值的倍数，也不是各微批梯度的重新加权。",
        evidence=_limits_met(case),
    )


def _not_finite(case: Case, which: str) -> Finding:
    if np.all(case.counts):
        english, chinese = "not finite where the reference is", "不是有限数，参考却是"
    else:
        english, chinese = (
            "not finite: is the mean of an empty microbatch taken (0/0)",
            "不是有限数：是否对空的微批取了均值（0/0）",
        )
    return unknown(case, f"The gradient of {which} is {english}.", f"{which} 的梯度{chinese}。")


def _limits_met(case: Case) -> tuple[Text, ...]:
    if case.cast_on_ranks_only:
        return (
            {
                "en": "torch.autocast is on where there are several processes, and off on one.",
                "zh": "多个进程时开着 torch.autocast，单进程时没有。",
            },
        )
    if case.blurred:
        return (
            {
                "en": "In so coarse a type effective weights cannot be told from rounding: audit in float64.",
                "zh": "精度这么低的类型里，有效权重与舍入分不开：请用 float64 审计。",
            },
        )
    return ()


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
        factor=f"{named.name} = {number(factor)}" if named.names else number(factor),
        usual=factors.usual(named.name),
    )


def partly_scaled(case: Case) -> Finding | None:
    """Some parameters are right and the others are off by one factor that has a name.

    Where samples depend on each other only scalars, such as a learned temperature, are told so: the local part of a
    whole tensor's gradient may happen to be exactly 1/P.
    """
    expected = case.in_parts(case.reference.gradient)
    rows = case.rows()
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
        case,
        "scale",
        names=named.names,
        only=tuple(row.name for row in wrong),
        evidence=(evidence,),
        factor=f"{named.name} = {number(ratios[0])}",
        usual=usual,
    )


def span_of(case: Case, cells: Sequence[Cell]) -> Span:
    """The gradients of these cells alone; a cell that cannot be run alone has none."""
    return Span([case.basis(cell) for cell in cells])


def reference_weights(case: Case, span: Span, cells: Sequence[Cell]) -> tuple[Array, Array | None] | None:
    """With which weights the reference consists of the cells, and what they are called if not that.

    n_c/N, or what fits. Columns that are no means (a constant of the window divides them) have no weights that add up
    to 1: then the report counts relative to n_c/N. None if the reference does not consist of the cells.
    """
    usual = np.array([case.count(cell) for cell in cells])
    usual = usual / (case.weight or 1.0)
    against = span.against(case.reference.gradient)
    if against.residual(usual) < reweighting.fitting(case.near):
        return usual, None
    fitted, residual = against.fit()
    if residual >= reweighting.fitting(case.near) or not span.unique or not np.all(fitted[usual > 0]):
        return None
    return fitted, None if abs(float(fitted.sum()) - 1.0) < case.apart else usual


def _reweighted(case: Case) -> Finding | None:
    got = case.gradient
    assert got is not None
    if case.variations is None:
        return None
    if case.blurred:
        return _by_contrast(case)
    fits = reweighting.fitting(case.near)
    for table in dict.fromkeys((case.cells, case.plan.cells)):
        rows = padded(table)
        cells = [cell for row in rows for cell in row]
        span = span_of(case, cells)
        found = reference_weights(case, span, cells)
        if found is None:
            continue
        right, shares = found
        counts = np.array([float(len(cell)) for cell in cells])
        rule = reweighting.explain(span.against(got), right, counts, case.processes, fits, shares)
        if rule is None:
            continue
        called = right if shares is None else shares
        of_columns = rule.weights * np.divide(right, called, out=np.ones_like(right), where=called != 0)
        clipped = clipped_by_rank(case, span, right, of_columns) if rule.pattern == "unknown" else None
        return clipped or _weights_finding(case, rule, called, rows)
    return None


def _partly_reweighted(case: Case) -> Finding | None:
    """Some parameters are right, and the others consist of the cells with other weights: another part is reduced."""
    assert case.gradient is not None
    if case.variations is None or case.blurred:
        return None
    got, expected = case.in_parts(case.gradient), case.in_parts(case.reference.gradient)
    rows = case.rows()
    wrong = [row.name for row in rows if row.status not in ("same", "zero")]
    if not any(row.status == "same" for row in rows) or not any(name in got and got[name].any() for name in wrong):
        return None  # what is lost altogether has no weights
    table = padded(case.cells)
    cells = [cell for row in table for cell in row]
    columns = [case.basis(cell) for cell in cells]
    span = Span([column and case.in_parts(column).only(wrong) for column in columns])
    right = np.array([case.count(cell) for cell in cells]) / (case.weight or 1.0)
    fits = reweighting.fitting(case.near)
    if not span.unique or span.against(expected.only(wrong)).residual(right) >= fits:
        return None
    counts = np.array([float(len(cell)) for cell in cells])
    rule = reweighting.explain(span.against(got.only(wrong)), right, counts, case.processes, fits)
    if rule is None or rule.pattern == "unknown":
        return None
    only: Text = {
        "en": f"Only in the gradient of {listing(wrong)}; of all others it is right.",
        "zh": f"只在 {listing(wrong)} 的梯度里；其余都正确。",
    }
    return _weights_finding(case, rule, right, table, (only,))


def _by_contrast(case: Case) -> Finding | None:
    """In a coarse type: the rule that explains the gradient within its rounding, and clearly better than all others."""
    assert case.gradient is not None
    rows = padded(case.plan.cells)
    cells = [cell for row in rows for cell in row]
    span = span_of(case, cells)
    right = np.array([case.count(cell) for cell in cells]) / (case.weight or 1.0)
    counts = np.array([float(len(cell)) for cell in cells])
    against = span.against(case.gradient)
    if not span.used or span.against(case.reference.gradient).residual(right) > case.near:
        return None
    tried = sorted(
        (against.multiple(weights)[1], pattern, weights)
        for pattern, weights in reweighting.distinct(
            [("right", right), *reweighting.patterns(right, counts, case.processes)]
        )
    )
    best, pattern, weights = tried[0]
    if pattern == "right" or best > case.near or (len(tried) > 1 and tried[1][0] < CONTRAST * best):
        return None
    factor, _ = against.multiple(weights)
    factor = round(factor, 1) if abs(factor - 1) > 0.05 else 1.0
    return _weights_finding(case, Reweighting(pattern, factor * weights, factor), right, rows)


def _weights_finding(
    case: Case, rule: Reweighting, right: Array, rows: list[list[Cell]], evidence: tuple[Text, ...] = ()
) -> Finding:
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
    names: tuple[str, ...] = ()
    if abs(rule.factor - 1) > case.apart and rule.pattern in EQUAL:
        named = case.named(rule.factor)
        names = named.names
        evidence += (
            {"en": f"All weights are {named.name} times as large on top.", "zh": f"此外所有权重都是 {named.name} 倍。"},
        )
    if rule.pattern == "unknown":
        return finding(case, "unknown", weights=weights, evidence=evidence, what=UNNAMED)
    if rule.pattern in WHILE_EQUAL:
        evidence += (ONLY_WHILE_EQUAL,)
    return finding(case, rule.pattern, names=names, weights=weights, evidence=evidence, which=which)


EQUAL = ("replica_equal", "microbatch_equal", "sample_share")
WHILE_EQUAL = ("replica_equal", "microbatch_equal")
ONLY_WHILE_EQUAL: Text = {
    "en": "So it is right only while all of them have equally many.",
    "zh": "因此只有当它们的计数都相等时才正确。",
}


def _rows(weights: Array, ranks: int) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(float(weight) for weight in row) for row in weights.reshape(ranks, -1))


def _rounded(case: Case, most: float = 1.0, slack: float = precision.SLACK) -> Finding | None:
    got = case.gradient
    assert got is not None
    residual = parameters.residual(case.reference.gradient, got)
    carried = precision.carried_in(case.reference.gradient, got, residual, slack)
    if carried is None:
        return None
    seen = residual < most and case.goes_through(carried)
    if not seen and not precision.is_exactly(got, carried):
        return None
    return finding(case, "precision", type=carried, residual=residual)
