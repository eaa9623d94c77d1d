"""Terms between samples: the loss of one depends on others, as with in-batch negatives or batch statistics.

Then the reference is no sum of what the microbatches give alone. If what was observed is such a sum, each part was
computed by itself. If it is not, and yet the loss is right, the other ranks' samples took part in the forward only.
"""

from collections.abc import Sequence

import numpy as np

from samestep.app.evidence.bags import Text
from samestep.experiments.audit import parameters, reweighting
from samestep.experiments.audit.case import Case, Cell, padded
from samestep.experiments.audit.compare import Difference
from samestep.experiments.audit.report import Finding
from samestep.experiments.audit.reweighting import Span
from samestep.experiments.audit.vectors import Vectors
from samestep.experiments.audit.wording import finding, listing, unknown

SEEN = 1e-6
"""A gradient so much smaller than the ones it was computed from is rounding (a Gram matrix has half the digits)."""

PARTS: tuple[tuple[str, Text], ...] = (
    ("cells", {"en": "microbatch of each rank", "zh": "rank 的每个微批次"}),
    ("ranks", {"en": "rank", "zh": "rank"}),
    ("steps", {"en": "accumulation step", "zh": "累积步"}),
)


def explain_cross_terms(case: Case, found: dict[str, Difference | None]) -> Finding | None:
    """A finding if the reference has terms between samples; None if it is a sum over the microbatches."""
    dropout = next((limit.where for limit in case.reference.limits if limit.kind == "dropout"), None)
    if dropout:
        return unknown(
            case,
            f"{dropout} draws other masks in another run, so gradients differ by chance: switch it off for the audit. "
            "Samples, replicas and counted collectives are still compared.",
            f"{dropout} 每次运行的掩码不同，梯度的差异只是偶然：审计时请关掉它。样本、各 rank "
            f"是否一致与集合通信次数仍已比较。",
        )
    if has_no_cross_terms(case):
        return None
    normalised = next((limit.where for limit in case.ranks[0].limits if "batch_norm" in limit.kind), None)
    if not normalised and _has_constant_term(case):
        return unknown(
            case,
            "The loss has a term that does not depend on the samples, such as a penalty on the weights, and it counts "
            "once for every microbatch. Divide it by their number, or add it once.",
            "loss 中有一项与样本无关（例如权重惩罚），它在每个微批次中都被计入一次。应除以微批次数，或只加一次。",
        )
    for name, part in PARTS:
        if case.gradient is not None and _is_sum(case, case.gradient, _tables(case)[name]):
            if normalised:
                return finding(case, "batch_statistics", where=normalised)
            return finding(case, "missing_negatives", part=part)
    if normalised:
        return finding(case, "batch_statistics", where=normalised)
    return _gathered(case, found)


def has_no_cross_terms(case: Case) -> bool:
    """Whether the reference is a sum of what the microbatches give alone."""
    return _is_sum(case, case.reference.gradient, _tables(case)["cells"])


def _has_constant_term(case: Case) -> bool:
    """Whether B_a + B_b - B_ab is the same, and not zero, for two pairs of cells: the gradient of a constant term."""
    used = [cell for row in case.cells for cell in row if cell]
    if len(used) < 4:
        return False
    parts = [part for a, b in (used[:2], used[2:4]) for part in (a, b, a + b)]
    span = Span([case.basis(cell) for cell in parts])
    one = np.array([1.0, 1.0, -1.0])
    first, second = np.append(one, 0 * one), np.append(0 * one, one)
    shortest = min(span.length(np.eye(len(parts))[i]) for i in range(len(parts)))
    return span.length(first) > SEEN * shortest and span.length(first - second) < SEEN * span.length(first)


def _tables(case: Case) -> dict[str, list[Cell]]:
    rows = padded(case.cells)
    joined = [tuple(sample for cell in row for sample in cell) for row in rows]
    steps = [tuple(sample for row in rows for sample in row[k]) for k in range(len(rows[0]))]
    return {"cells": [cell for row in rows for cell in row], "ranks": joined, "steps": steps}


def _is_sum(case: Case, gradient: Vectors, cells: Sequence[Cell]) -> bool:
    """Whether weights exist with which the cells' own gradients give this one."""
    against = Span([case.basis(cell) if cell else None for cell in cells]).against(gradient)
    usual = [case.count(cell) / (case.weight or 1.0) for cell in cells]
    equal = [float(bool(cell)) / len(cells) for cell in cells]
    for weights in (usual, equal):
        if against.multiple(np.array(weights))[1] < reweighting.fitting(case.near):
            return True
    enough = gradient.numel > 2 * len(cells)
    return enough and against.fit()[1] < reweighting.fitting(case.near)


def _gathered(case: Case, found: dict[str, Difference | None]) -> Finding | None:
    loss, got = found["loss"], case.gradient
    if loss is None or loss.there or got is None or case.processes == 1:
        return None
    gradient = found["gradient"]
    rows = parameters.table(case.reference.gradient, got, gradient.allowed if gradient else 0.0, case.near)
    wrong = [row.name for row in rows if row.status not in ("same", "zero")]
    right = [row.name for row in rows if row.status == "same"]
    gathered = any("all_gather" in event or "all_to_all" in event for trace in case.ranks for event in trace.events)
    if not gathered and not right:
        return None
    evidence: tuple[Text, ...] = (
        {"en": f"Right: {listing(right) or 'none'}.", "zh": f"正确的：{listing(right) or '无'}。"},
    )
    return finding(case, "detached_remote", wrong=listing(wrong), evidence=evidence)
