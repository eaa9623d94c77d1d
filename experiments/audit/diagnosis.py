"""From the traces of a file to its report: compare every plan, explain what differs, say what cannot be concluded."""

import math
from collections.abc import Sequence
from pathlib import Path

import torch

from samestep.app.evidence.bags import Text
from samestep.experiments.audit import compare, parameters, perform, stages
from samestep.experiments.audit.case import Basis, Case, Cell
from samestep.experiments.audit.explanation import explain
from samestep.experiments.audit.limits import limits
from samestep.experiments.audit.plans import Plan
from samestep.experiments.audit.reader import load
from samestep.experiments.audit.report import Finding, PlanReport, RankLog, Report, Verdict
from samestep.experiments.audit.rows import Rows
from samestep.experiments.audit.settings import Settings
from samestep.experiments.audit.trace import Trace
from samestep.experiments.audit.vectors import Vectors
from samestep.experiments.audit.wording import finding, unknown


def diagnose(place: Path, folder: Path, plans: Sequence[Plan], settings: Settings, device: torch.device) -> Report:
    """The report of one file whose runs are in the folder. May run parts of the batch alone, in a world of one."""
    dtype: torch.dtype = getattr(torch, settings.dtype)
    file = load(place, dtype)
    data = file.data()
    weights, numbers = file.weights(data), Rows(data).numbers
    reference = perform.loaded(folder / "reference")
    basis = _basis(place, folder, dtype, device)
    reports = []
    for plan in plans:
        ranks = [perform.loaded(folder / plan.name / f"rank{rank}") for rank in range(len(plan.cells))]
        reports.append(
            plan_report(Case(plan, reference, ranks, weights, numbers, settings.tolerance, folder / plan.name, basis))
        )
    return Report(
        place,
        tuple(reports),
        settings=settings,
        samples=len(weights),
        weight=sum(weights),
        parameters=reference.parameters.numel,
    )


def _basis(place: Path, folder: Path, dtype: torch.dtype, device: torch.device) -> Basis:
    """The gradient of a cell alone, run when it is asked for and kept on disk."""
    made: dict[Cell, Vectors] = {}

    def basis(cell: Cell) -> Vectors:
        if cell not in made:
            made[cell] = perform.alone(place, dtype, device, folder / f"basis{len(made)}", cell).load().gradient
        return made[cell]

    return basis


def plan_report(case: Case) -> PlanReport:
    """Compare a plan and explain its first difference."""
    found = stages.compared(case)
    first = stages.first(found)
    nothing = vacuous(case, first)
    verdict: Verdict = "vacuous" if nothing else "different" if first else "same"
    reason: Finding | None = nothing or (explain(case, found, first) if first else None)
    gradient = found["gradient"]
    return PlanReport(
        case.plan.name,
        tuple(tuple(row) for row in case.plan.counts),
        tuple(tuple(case.count(cell) for cell in row) for row in case.plan.cells),
        verdict,
        stages.listed(found, first),
        first,
        reason,
        parameters.table(case.reference.gradient, case.gradient, gradient.allowed, case.near)
        if gradient is not None and case.gradient is not None
        else (),
        _log(case.reference),
        tuple(_log(trace) for trace in case.ranks),
        limits(case),
        _notes(case, found, first),
    )


def _log(trace: Trace) -> RankLog:
    return RankLog(
        trace.rank,
        tuple(trace.events),
        tuple(trace.losses),
        tuple(trace.norms),
        trace.collectives,
        trace.leftover,
    )


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
    if _not_finite(reference) and (first in (None, "loss") or ranks[0].loss_scale is None):
        return _vacuous(case, "the reference's own gradient is not finite", "参照自身的梯度就不是有限数")
    silent = all(_silent(trace) for trace in ranks)
    if silent and (first is None or not _silent(reference)):
        if any(trace.steps for trace in ranks) and _moved(reference, ranks[0]):
            return finding(
                case,
                "stepped_on_empty",
                where={"en": "a batch", "zh": "该批次"},
                moved={"en": "the parameters", "zh": "参数"},
            )
        return _vacuous(case, "all gradients are zero or None", "所有梯度都是零或 None")
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


def _unreduced(case: Case) -> bool:
    if case.processes == 1 or any(trace.collectives for trace in case.ranks):
        return False
    return not compare.replicas(case.ranks, "parameters", case.atol).there


def _vacuous(case: Case, english: str, chinese: str) -> Finding:
    return unknown(case, f"This proves nothing: {english}.", f"这说明不了任何问题：{chinese}。")


def _notes(case: Case, found: stages.Found, first: str | None) -> tuple[Text, ...]:
    """What is worth knowing and decides nothing."""
    notes: list[Text] = []
    quiet = compare.noise(case.reference.gradient) if "gradient" in case.reference.vectors else []
    for names, english, chinese in (
        (quiet, "gradient zero in the reference", "参照中梯度为零"),
        (case.reference.none_gradients, "no gradient (None) in the reference", "参照中没有梯度（None）"),
    ):
        if names:
            notes.append({"en": f"{english}: {', '.join(names)}", "zh": f"{chinese}：{'、'.join(names)}"})
    if case.consumption is not None and case.consumption.times != 1:
        times = f"{case.consumption.times:g}"
        notes.append({"en": f"every sample was fed {times} times", "zh": f"每个样本都被输入了 {times} 次"})
    if case.blurred:
        notes.append(
            {
                "en": f"differences below {case.atol:g} of the greatest number do not show: audit in float64 as well",
                "zh": f"小于最大值 {case.atol:g} 倍的差异看不出来：请同时用 float64 审计",
            }
        )
    samples = found["samples"]
    if samples is not None and samples.there and first is None:
        notes.append(
            {
                "en": "some samples were fed a different number of times, without effect on the update",
                "zh": "有样本被输入的次数不同，但对更新没有影响",
            }
        )
    return tuple(notes)
