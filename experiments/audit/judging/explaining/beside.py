"""Why something beside the update differs: an average that is taken too often, a buffer of a rank's own, a schedule."""

from collections.abc import Mapping

from samestep.app.evidence.bags import Text
from samestep.experiments.audit.judging import compare
from samestep.experiments.audit.judging.case import Case
from samestep.experiments.audit.judging.compare import Difference
from samestep.experiments.audit.judging.explaining.pulls import pull, times_of
from samestep.experiments.audit.running.vectors import Array, Vectors
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
    elif averaged := _averaged(case, stage, names):
        times, weight = averaged
        named = case.named(float(times))
        shown = f"{named.name} = {times}" if named.names else str(times)
        why = {
            "en": f"It moved as far as {shown} averages of weight {number(weight)} take it, in place of one: it is "
            "updated that often.",
            "zh": f"它移动的距离相当于 {shown} 次权重为 {number(weight)} 的平均，而不是一次：它被更新了这么多次。",
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


def _averaged(case: Case, stage: str, names: list[str]) -> tuple[int, float] | None:
    """How often these tensors were averaged with the parameters, and with what weight; None where that is not known.

    The reference says with what weight w it is done once: it moves by w (p - b) from where it began, b, towards the
    parameters p at its end, or as they were before the update. n times it moves by 1 - (1 - w)ⁿ of that.
    """
    for kind in KINDS[stage]:
        expected, got = case.reference.vectors.get(kind), case.ranks[0].vectors.get(kind)
        begin = case.reference.vectors.get("initial" if kind == "parameters" else "beside")
        if expected is None or got is None or begin is None:
            continue
        if not all(name in each for name in names for each in (expected, got, begin)):
            continue
        once, often = ([each[name] - begin[name] for name in names] for each in (expected, got))
        for known in ("parameters", "initial"):
            towards = [_parameter(case.reference.vectors[known], name, begin) for name in names]
            away = [p - begin[name] for p, name in zip(towards, names, strict=True) if p is not None]
            if len(away) < len(names):
                continue
            weight = pull(away, once)
            if times := times_of(1 - weight, 1 - pull(away, often)):
                return times, weight
    return None


def _parameter(known: Vectors, name: str, copies: Vectors) -> Array | None:
    """The parameter that a copy is of: the longest name that the copy's ends with, in the same shape."""
    found = [each for each in known if f".{name}".endswith(f".{each}") and each != name]
    found = [each for each in found if known.shape(each) == copies.shape(name)]
    return known[max(found, key=len)] if found else None


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
