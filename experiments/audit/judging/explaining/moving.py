"""Parameters that are changed in place between the backwards of one update, which on one process has one.

Whether that is what is wrong can be seen: the cells' gradients, each at the parameters that its backward met, add up to
what was observed. A change that comes before a backward is made by a run of the cell alone as well, so that such a run
has to begin with what the backward before it met.
"""

from dataclasses import replace

import numpy as np

from samestep.app.evidence.bags import Text
from samestep.experiments.audit.failure import ReaderError
from samestep.experiments.audit.judging.case import Case
from samestep.experiments.audit.judging.explaining import reweighting
from samestep.experiments.audit.judging.explaining.constants import CLEAR, regulariser
from samestep.experiments.audit.judging.explaining.reweighting import Span
from samestep.experiments.audit.running.perform import Variation
from samestep.experiments.audit.running.trace import MET, Trace
from samestep.experiments.audit.running.variations import Cell
from samestep.experiments.audit.running.vectors import Vectors
from samestep.experiments.audit.telling.report import Finding
from samestep.experiments.audit.telling.wording import finding, listing, number, unknown

SEEN: Text = {
    "en": "The microbatches' gradients at the parameters that each backward met add up to what was observed.",
    "zh": "各微批在其反向所遇到的参数处的梯度，加起来正是观察到的梯度。",
}


def moved_inside(case: Case) -> Finding | None:
    """A finding if the change explains the gradient, as a decay where all parameters were multiplied by a number."""
    if not _only_on_ranks(case):
        return None
    shrunk = _shrunk(case)
    explained = case.gradient is not None and (_adds_up(case, 0) or _adds_up(case, 1))
    if shrunk is not None:
        return regulariser(case, None, _names(case), (shrunk, *((SEEN,) if explained else ())))
    if not explained:
        return None
    return finding(case, "moved_inside_window", which=listing(_names(case)), evidence=(SEEN,))


def moved_somehow(case: Case) -> Finding | None:
    """What was seen, where it is not known to be the cause."""
    if not _only_on_ranks(case):
        return None
    which = listing(_names(case))
    return unknown(
        case,
        f"Parameters ({which}) are changed in place between the backwards of one update: later microbatches see "
        "others. Whether that is all that is wrong is not known.",
        f"一次更新的各次反向之间，参数（{which}）被就地改动：之后的微批看到的是另一组参数。是否仅此一处有误尚不清楚。",
    )


def _only_on_ranks(case: Case) -> bool:
    return not case.reference.moved_inside and any(trace.moved_inside for trace in case.ranks)


def _names(case: Case) -> list[str]:
    return list(dict.fromkeys(name for trace in case.ranks for move in trace.moves for name in move.names))


def _shrunk(case: Case) -> Text | None:
    moves = case.ranks[0].moves
    factors = [move.factor for move in moves if move.factor is not None]
    if len(factors) < len(moves) or not factors or max(factors) - min(factors) > CLEAR or not 0 < factors[0] < 1:
        return None
    return {
        "en": f"Between the backwards of one update they are multiplied by {number(factors[0])}, {len(moves)} times: "
        "every later microbatch sees smaller ones. Decay acts once, at the step.",
        "zh": f"一次更新的各次反向之间，它们被乘以 {number(factors[0])}，共 {len(moves)} 次："
        "之后的每个微批看到的都更小。衰减应只在 step 时作用一次。",
    }


def _adds_up(case: Case, earlier: int) -> bool:
    """Whether n_c/N of the cells' gradients make the observed one, each from what `earlier` backwards before met."""
    if case.variations is None or case.gradient is None or "initial" not in case.reference.vectors:
        return False
    columns: list[Vectors | None] = []
    weights: list[float] = []
    for trace, cells in zip(case.ranks, case.cells, strict=True):
        for k, cell in enumerate(cells):
            gradient = _from(case, trace, max(k - earlier, 0), cell) if cell else None
            if cell and gradient is None:
                return False
            columns.append(gradient)
            weights.append(case.count(cell) / (case.weight or 1.0))
    return Span(columns).against(case.gradient).residual(np.array(weights)) < reweighting.fitting(case.near)


def _from(case: Case, trace: Trace, k: int, cell: Cell) -> Vectors | None:
    """The gradient of a cell alone, at the parameters that this backward of the rank met."""
    assert case.variations is not None
    changed = [each for each in trace.met if each <= k]
    if not changed:
        return case.basis(cell)
    met = trace.vectors[MET.format(changed[-1])]
    beside = case.reference.vectors.get("beside")
    begin = replace(case.reference, vectors={"initial": met, **({"buffers": beside} if beside is not None else {})})
    try:
        found = case.variations.run(Variation(cell, begin=begin)).vectors.get("gradient")
    except ReaderError:  # a part that cannot be run alone explains nothing
        return None
    return found if found is not None and found.finite else None
