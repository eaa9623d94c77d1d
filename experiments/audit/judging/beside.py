"""Why something beside the update differs: an average that is taken too often, a buffer of a rank's own, a schedule."""

from collections.abc import Mapping

import numpy as np

from samestep.app.evidence.bags import Text
from samestep.experiments.audit.judging import compare
from samestep.experiments.audit.judging.case import Case
from samestep.experiments.audit.judging.compare import Difference
from samestep.experiments.audit.running.vectors import Vectors
from samestep.experiments.audit.telling.report import Finding
from samestep.experiments.audit.telling.wording import finding, listing, number

RATE = "lr"
KINDS = {"buffers": ("buffers", "outside"), "notes": ("notes",), "parameters": ("parameters",)}


def explain_beside(case: Case, found: Mapping[str, Difference | None], stage: str) -> Finding:
    """The finding for buffers, copies of the parameters, and noted values."""
    difference = found[stage]
    names = [name for name, _ in difference.tensors] if difference else []
    if stage == "parameters" and difference is not None:
        names = [name for name, apart in difference.tensors if apart > difference.allowed]
    normalised = next((limit.where for limit in case.ranks[0].limits if "batch_norm" in limit.kind), None)
    if normalised and stage == "buffers":
        return finding(case, "batch_statistics", where=normalised)
    apart = _differ_between_ranks(case, stage)
    why: Text = {
        "en": "It is the same on all ranks, and not what one process has: it is updated another number of times, or "
        "at another moment.",
        "zh": "它在各 rank 上相同，但与单进程不同：更新的次数或时机不同。",
    }
    if apart:
        why = {
            "en": "It is not the same on all ranks: each updates it from its own part of the batch. Reduce what it is "
            "updated with.",
            "zh": "它在各 rank 上不同：每个 rank 用自己那部分批次更新它。应归约用来更新它的量。",
        }
    elif decay := _times_of_an_average(case, stage, names):
        why = {
            "en": f"It moved as far as {case.microbatches} averages of decay {number(decay)} take it, in place of one: "
            f"it is updated in every microbatch.",
            "zh": f"它移动的距离相当于 {case.microbatches} 次衰减为 {number(decay)} 的平均，而不是一次："
            "每个微批都更新了它。",
        }
    return finding(case, "outside_state", which=listing(names), why=why)


def _differ_between_ranks(case: Case, stage: str) -> bool:
    for kind in KINDS[stage]:
        first = case.ranks[0].vectors.get(kind)
        for trace in case.ranks[1:]:
            other = trace.vectors.get(kind)
            if first is not None and other is not None:
                apart = compare.one_by_one(first, other, case.atol)
                if apart is not None and apart.there:
                    return True
    return False


def _times_of_an_average(case: Case, stage: str, names: list[str]) -> float | None:
    """d if all these tensors moved f = (1 - d^K)/(1 - d) times as far as in the reference; None if they did not."""
    if case.microbatches < 2:
        return None
    for kind in KINDS[stage]:
        expected, got = case.reference.vectors.get(kind), case.ranks[0].vectors.get(kind)
        if expected is None or got is None or not all(name in expected and name in got for name in names):
            continue
        begin = case.reference.vectors.get("initial") if kind == "parameters" else None
        factors = [factor for name in names if (factor := _moved(expected, got, begin, name)) is not None]
        if len(factors) == len(names) and factors and max(factors) - min(factors) < 1e-6 * max(factors):
            return _decay(factors[0], case.microbatches)
    return None


def _moved(expected: Vectors, got: Vectors, begin: Vectors | None, name: str) -> float | None:
    """By what factor it moved further, from where it began (or from zero); None where that is no factor."""
    start = begin[name] if begin is not None and name in begin else np.zeros_like(expected[name])
    once, often = expected[name] - start, got[name] - start
    square = float(np.vdot(once, once))
    factor = float(np.vdot(once, often)) / square if square else 0.0
    missed = float(np.linalg.norm(often - factor * once))
    return factor if factor and missed <= 1e-6 * float(np.linalg.norm(often)) else None


def _decay(factor: float, times: int) -> float | None:
    """d with 1 + d + … + d^(K-1) = f, for 0 < d < 1; None where there is none. By bisection: the sum grows with d."""
    if not 1.0 < factor < times:
        return None
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(middle**k for k in range(times)) < factor else (low, middle)
    return low


def explain_settings(case: Case, difference: Difference | None) -> Finding | None:
    """A learning rate, another option of the optimizer, or a schedule that is somewhere else after the update."""
    changed = case.changed_settings
    if difference is None or not changed or difference.tensors[0][0] not in {name for name, _, _ in changed}:
        return None
    shown = [f"{name}: {value:.6g} → {got:.6g}" for name, value, got in changed]
    rates = [each for each in shown if f".{RATE}:" in each]
    steps = case.ranks[0].events.count("scheduler"), case.reference.events.count("scheduler")
    evidence: tuple[Text, ...] = ()
    if steps[0] != steps[1]:
        evidence = (
            {
                "en": f"The scheduler stepped {steps[0]} times, on one process {steps[1]} times (its own first step "
                "included, where it is made in here).",
                "zh": f"调度器走了 {steps[0]} 步，单进程上 {steps[1]} 步（若在此处创建，含它自己的第一步）。",
            },
        )
    return finding(case, "settings", when=AFTER, changed=listing(rates or shown), evidence=evidence)


AFTER: Text = {"en": "is left with other settings for the next update", "zh": "留给下一次更新的设置不同"}
