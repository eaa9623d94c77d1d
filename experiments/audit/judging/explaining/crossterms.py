"""Terms between samples: the loss of one depends on others, as with in-batch negatives or batch statistics.

Then the reference is no sum of what the microbatches give alone. If what was observed is such a sum, each part was
computed by itself. If it is not, and yet the loss is right, the other ranks' samples took part in the forward only.
"""

from collections.abc import Sequence

import numpy as np

from samestep.app.evidence.bags import Text
from samestep.experiments.audit.judging import parameters
from samestep.experiments.audit.judging.case import Case, padded
from samestep.experiments.audit.judging.compare import Difference
from samestep.experiments.audit.judging.explaining import reweighting
from samestep.experiments.audit.judging.explaining.reweighting import Span
from samestep.experiments.audit.running.variations import Cell
from samestep.experiments.audit.running.vectors import Vectors
from samestep.experiments.audit.telling.report import Finding
from samestep.experiments.audit.telling.wording import finding, listing

PARTS: tuple[tuple[str, Text], ...] = (
    ("cells", {"en": "microbatch of each rank", "zh": "rank 的每个微批"}),
    ("ranks", {"en": "rank", "zh": "rank"}),
    ("steps", {"en": "accumulation step", "zh": "累积步"}),
)


def explain_cross_terms(case: Case, found: dict[str, Difference | None]) -> Finding | None:
    """A finding if the reference has terms between samples; None if it is a sum over the microbatches."""
    if case.variations is None or has_no_cross_terms(case):
        return None
    normalised = next((limit.where for limit in case.ranks[0].limits if "batch_norm" in limit.kind), None)
    for name, part in PARTS:
        cells = _tables(case)[name]
        if case.gradient is not None and _is_sum(case, case.gradient, cells):
            if normalised:
                return finding(case, "batch_statistics", where=normalised)
            cause = "missing_negatives" if _pairs_of_rows(case, cells) else "parts_alone"
            return finding(case, cause, part=part, evidence=_left_out(case))
    if normalised:
        return finding(case, "batch_statistics", where=normalised)
    return _gathered(case, found)


def _left_out(case: Case) -> tuple[Text, ...]:
    left = sorted(case.variations.left_out) if case.variations else []
    if not left:
        return ()
    shown = "; ".join(listing(cell) for cell in left)
    return (
        {
            "en": f"Alone these samples have no finite gradient, and are left out of the comparison: {shown}.",
            "zh": f"这些样本单独没有有限的梯度，比较时略去：{shown}。",
        },
    )


def _pairs_of_rows(case: Case, cells: Sequence[Cell]) -> bool:
    """The loss goes through a matrix with a number for every pair of rows, as large as the part that it is given."""
    assert case.variations is not None
    whole = len(case.weights)
    times = {
        (shape[0] // whole, shape[1] // whole)
        for shape in case.reference.pairwise
        if all(shape) and not shape[0] % whole and not shape[1] % whole
    }
    parts = [cell for cell in cells if len(cell) > 1][:2]
    return bool(parts) and any(
        all((a * len(part), b * len(part)) in case.variations.trace(part).pairwise for part in parts) for a, b in times
    )


def has_no_cross_terms(case: Case) -> bool:
    """Whether the reference is a sum of what the microbatches give alone."""
    return _is_sum(case, case.reference.gradient, _tables(case)["cells"])


def _tables(case: Case) -> dict[str, list[Cell]]:
    rows = padded(case.cells)
    joined = [tuple(sample for cell in row for sample in cell) for row in rows]
    steps = [tuple(sample for row in rows for sample in row[k]) for k in range(len(rows[0]))]
    return {"cells": [cell for row in rows for cell in row], "ranks": joined, "steps": steps}


def _is_sum(case: Case, gradient: Vectors, cells: Sequence[Cell]) -> bool:
    """Whether weights exist with which the cells' own gradients give this one."""
    against = Span([case.basis(cell) for cell in cells]).against(gradient)
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
    cut = any(trace.detached for trace in case.ranks)
    if not cut and not right:
        return None
    evidence: tuple[Text, ...] = (
        {"en": f"Right: {listing(right) or 'none'}.", "zh": f"正确的：{listing(right) or '无'}。"},
    )
    return finding(case, "detached_remote", wrong=listing(wrong), evidence=evidence)
