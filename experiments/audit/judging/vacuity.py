"""When a run proves nothing: no step, no gradient, no movement, no communication."""

import math

from samestep.experiments.audit.judging import compare
from samestep.experiments.audit.judging.case import Case
from samestep.experiments.audit.running.trace import Trace
from samestep.experiments.audit.telling.report import Finding
from samestep.experiments.audit.telling.wording import finding, unknown


def vacuous(case: Case, first: str | None) -> Finding | None:
    """Why the run proves nothing: no step, no gradient, no movement, no communication. None if it proves something."""
    reference, ranks = case.reference, case.ranks
    if not any(trace.steps for trace in ranks) and not any(_moved(reference, trace) for trace in ranks):
        if reference.steps == 0 and ranks[0].loss_scale and _not_finite(reference):
            return _vacuous(
                case,
                "the gradient overflowed, and the scaler skipped the step on all ranks as on one process",
                "梯度溢出，各 rank 与单进程一样跳过了这一步",
            )
        return _vacuous(case, "optimizer.step() was never called", "从未调用 optimizer.step()")
    if _not_finite(reference) and (first is None or ranks[0].loss_scale is None):
        return _vacuous(case, "the reference's own gradient is not finite", "参考自身的梯度就不是有限数")
    silent = all(_silent(trace) for trace in ranks)
    if silent and (first is None or not _silent(reference)):
        if any(trace.steps for trace in ranks) and _moved(reference, ranks[0]):
            return finding(
                case,
                "stepped_on_empty",
                where={"en": "a batch", "zh": "该批次"},
                moved={"en": "the parameters", "zh": "参数"},
            )
        english, chinese = _why_silent(reference)
        return _vacuous(case, f"all gradients are zero or None{english}", f"所有梯度都是零或 None{chinese}")
    if first is None and not _moved(reference, reference):
        if any(name not in reference.vectors["initial"] for name in reference.names):
            return _vacuous(
                case,
                "no parameter moved; the optimizer holds parameters that the model no longer has: build it after the "
                "wrapper, or repoint its param_groups",
                "没有任何参数改变；优化器持有的参数已不属于模型：应在包装之后创建优化器，或重新指向 param_groups",
            )
        return _vacuous(case, "no parameter moved", "没有任何参数改变")
    if _unreduced(case):
        return _vacuous(
            case,
            "nothing was reduced between the ranks; each did all the work by itself",
            "rank 之间没有任何归约；每个 rank 都独自做完了全部工作",
        )
    return None


def _moved(reference: Trace, trace: Trace) -> bool:
    """Whether a parameter that was there before the step has changed."""
    before, after = reference.vectors["initial"], trace.parameters
    return any(name not in after or compare.greatest(before[name], after[name]) > 0 for name in before)


def _not_finite(trace: Trace) -> bool:
    kept = trace.vectors.get("gradient")
    return kept is not None and not math.isfinite(kept.dot(kept))


def _silent(trace: Trace) -> bool:
    """No gradient that is anything but zero (what is not finite is something)."""
    kept = trace.vectors.get("gradient")
    return kept is None or not any(kept.max_abs(name) != 0 for name in kept)


def _why_silent(trace: Trace) -> tuple[str, str]:
    """What the order of things says about it."""
    events = trace.events
    if "step" not in events:
        return "", ""
    before = events[: events.index("step")]
    if "backward" not in before:
        return ": the step comes before the first backward", "：step 在第一次反向之前"
    last = len(before) - before[::-1].index("backward")
    if "zero_grad" in before[last:]:
        return (
            ": zero_grad() comes between the last backward and the step",
            "：zero_grad() 在最后一次反向与 step 之间",
        )
    return "", ""


def _unreduced(case: Case) -> bool:
    if case.processes == 1 or any(trace.collectives for trace in case.ranks):
        return False
    return not compare.replicas(case.ranks, "parameters", case.atol).there


def _vacuous(case: Case, english: str, chinese: str) -> Finding:
    return unknown(case, f"This proves nothing: {english}.", f"这说明不了任何问题：{chinese}。")
