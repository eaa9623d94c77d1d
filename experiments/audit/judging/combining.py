"""Ranks that step with their own gradients, and put their parameters together afterwards.

With s_r, the parameters as rank r's optimizer leaves them, and those at the end, o, the weights of a mean solve
o - s_0 = Σ w_r (s_r - s_0) over r > 0, with w_0 = 1 - Σ w_r.
"""

import numpy as np

from samestep.app.evidence.bags import Text
from samestep.experiments.audit.judging import compare
from samestep.experiments.audit.judging.case import Case
from samestep.experiments.audit.judging.explaining.pulls import CLEAR
from samestep.experiments.audit.running.collectives import WITHIN
from samestep.experiments.audit.running.vectors import Array
from samestep.experiments.audit.telling.report import Finding
from samestep.experiments.audit.telling.wording import finding, listing, number, unknown

AFTERWARDS: Text = {"en": "their parameters are averaged afterwards", "zh": "之后再平均参数"}


def combined_afterwards(case: Case, evidence: tuple[Text, ...]) -> Finding | None:
    """A finding if the ranks communicate after their steps and end with one model: a mean, or one rank's."""
    if not _met_after_the_step(case) or compare.replicas(case.ranks, "parameters", case.atol).there:
        return None
    if not any("stepped" in trace.vectors for trace in case.ranks):  # too many to be kept
        return finding(case, "parameters_averaged", what=AFTERWARDS, evidence=evidence)
    weights = _weights(case)
    if weights is None:
        return unknown(
            case,
            "The ranks step with their own gradients; afterwards they put their parameters together, not by a mean.",
            "各 rank 用自己的梯度更新；之后把参数合在一起，但不是取平均。",
            evidence=evidence,
        )
    if np.max(weights) > 1 - CLEAR:
        rank = int(np.argmax(weights))
        why: Text = {
            "en": f"After the step all ranks take the parameters of rank {rank}: what the others' gradients made of "
            "theirs is lost.",
            "zh": f"更新之后所有 rank 都改用 rank {rank} 的参数：其他 rank 的梯度所起的作用丢失了。",
        }
        return finding(case, "not_reduced", why=why, evidence=evidence)
    what = AFTERWARDS
    if np.max(np.abs(weights - 1 / case.processes)) > CLEAR:
        shown = listing([number(float(weight)) for weight in weights])
        what = {
            "en": f"their parameters are averaged afterwards (with weights {shown})",
            "zh": f"之后再平均参数（权重 {shown}）",
        }
    return finding(case, "parameters_averaged", what=what, evidence=evidence)


def _met_after_the_step(case: Case) -> bool:
    """Every rank called a collective after its last step: parameters that agree may also do so by chance."""
    for trace in case.ranks:
        last = len(trace.events) - trace.events[::-1].index("step") if trace.steps else 0
        after = trace.events[last:]
        if not any(event.startswith("collective") and not event.endswith(WITHIN) for event in after):
            return False
    return True


def _weights(case: Case) -> Array | None:
    """w_r of all ranks; None where the end is no mean of them."""
    end = case.ranks[0].parameters
    left = [trace.vectors.get("stepped", trace.parameters) for trace in case.ranks]
    if not all(name in each for name in end for each in left):
        return None
    first, *others = (np.concatenate([each[name].ravel() for name in end]) for each in left)
    moved = np.concatenate([end[name].ravel() for name in end]) - first
    columns = np.stack([other - first for other in others], axis=1)
    solved = np.linalg.lstsq(columns, moved, rcond=None)[0]
    missed, scale = float(np.linalg.norm(moved - columns @ solved)), float(np.linalg.norm(columns))
    return np.array([1.0 - float(solved.sum()), *solved]) if missed <= CLEAR * scale else None
