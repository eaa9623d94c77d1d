"""Why ranks that should hold the same model do not: never reduced, other optimizers, or a step that not all took."""

from collections.abc import Sequence
from contextlib import suppress

from samestep.app.evidence.bags import Text
from samestep.experiments.audit.judging import compare, parameters
from samestep.experiments.audit.judging.case import Case
from samestep.experiments.audit.judging.combining import combined_afterwards
from samestep.experiments.audit.judging.explaining.after_step import changed_by_each
from samestep.experiments.audit.judging.explaining.measured import differing, who_is_missing
from samestep.experiments.audit.telling.report import Finding
from samestep.experiments.audit.telling.wording import finding, listing, numbers, unknown

FEW = 16
"""Numbers of a gradient below which two may be multiples of each other by chance."""


def explain_replicas(case: Case) -> Finding | None:
    """Why the ranks end with different models; None where their norms, or their clips, are what differs."""
    if skipped := _skipped_alone(case):
        return skipped
    if unwaited := not_waited(case):
        return unwaited
    if len({frozenset(trace.owned) for trace in case.ranks}) > 1:
        return _not_handed_on(case)
    if scaled := _scaled_by_rank(case):
        return scaled
    if "computed" in case.ranks[0].vectors and not compare.replicas(case.ranks, "computed", case.atol).there:
        return _changed_by_each(case)
    same_before = not compare.replicas(case.ranks, "gradient", case.atol).there
    if same_before and compare.replicas(case.ranks, "clipped_gradient", case.atol).there:
        return None
    if not compare.replicas(case.ranks, "clipped_gradient", case.atol).there:
        apart = compare.replicas(case.ranks, "parameters", case.atol)
        if other := _other_optimizers(case) or changed_by_each(case, apart):
            return other
        return unknown(
            case,
            "The ranks step with the same gradient and end with different parameters: do they start from the same "
            "model, with the same optimizer?",
            "各 rank 用相同的梯度更新，参数却不同：它们的初始模型和优化器相同吗？",
        )
    if combined := combined_afterwards(case, _which(case)):
        return combined
    missing = who_is_missing(case)
    evidence = (*_which(case), *((missing,) if missing else ()))
    return finding(case, "not_reduced", why=_why_not_reduced(case), evidence=evidence)


def _not_handed_on(case: Case) -> Finding:
    """Every rank's optimizer owns another part of the parameters."""
    apart, _ = differing(
        case.ranks[0].parameters,
        [trace.parameters for trace in case.ranks[1:]],
        case.atol * max(case.reference.parameters.scale, compare.SMALL),
    )
    return finding(case, "not_handed_on", which=listing(apart))


def _changed_by_each(case: Case) -> Finding | None:
    """All ranks have the same gradient after the last backward, and step with different ones."""
    if not compare.replicas(case.ranks, "gradient", case.atol).there:
        return None  # then it is a clip that differs
    drawn: Text = {"en": "", "zh": ""}
    if case.drawn:
        names = listing(case.drawn)
        drawn = {"en": f" The step draws random numbers ({names}).", "zh": f"这一步抽取随机数（{names}）。"}
    return unknown(
        case,
        "After the last backward all ranks have the same gradient; before the step each changes it in its own way."
        + drawn["en"],
        "最后一次反向之后各 rank 的梯度相同；在更新之前各自又把它改成了不同的。" + drawn["zh"],
    )


def not_waited(case: Case) -> Finding | None:
    """A collective that was begun and not waited for: whether it is done by the step is chance."""
    names = sorted({name for trace in case.ranks for name in trace.unwaited})
    if not names:
        return None
    collective = next(each for trace in case.ranks for each in trace.unwaited.values())
    why: Text = {
        "en": f"{collective}(…, async_op=True) was begun on {listing(names)}, and nobody waited for it before the "
        f"step: call wait() on what it returns.",
        "zh": f"对 {listing(names)} 发起了 {collective}(…, async_op=True)，但在 step 之前没有等待它完成："
        "应对它的返回值调用 wait()。",
    }
    return finding(case, "not_reduced", why=why)


def _which(case: Case) -> tuple[Text, ...]:
    """Tensors with which the ranks step differently, and those with which they do not."""
    kind = "clipped_gradient"
    if any(kind not in trace.vectors for trace in case.ranks):
        return ()
    first, *others = (case.in_parts(trace.clipped_gradient) for trace in case.ranks)
    apart, alike = differing(first, others, case.atol * max(first.scale, compare.SMALL))
    if not apart or not alike:
        return ()
    return (
        {
            "en": f"The ranks step with different gradients of {listing(apart)}; of {listing(alike)} they agree.",
            "zh": f"各 rank 更新所用的 {listing(apart)} 的梯度不同；{listing(alike)} 的一致。",
        },
    )


def _other_optimizers(case: Case) -> Finding | None:
    """The ranks step with the same gradient, but with other settings or another memory."""
    first = case.ranks[0]
    for trace in case.ranks[1:]:
        changed = changed_settings(first.hyperparameters, trace.hyperparameters)
        if changed:
            when: Text = {
                "en": f"steps with other settings on rank {trace.rank} than on rank 0",
                "zh": f"在 rank {trace.rank} 上的设置与 rank 0 不同",
            }
            return finding(case, "settings", when=when, changed="; ".join(changed))
    states = compare.replicas(case.ranks, "optimizer_state", case.atol)
    if not states.there:
        return None
    where = listing([name for name, apart in states.tensors if apart > states.allowed])
    return finding(
        case,
        "optimizer_state",
        where={"en": f"it is not the same on all ranks ({where})", "zh": f"各 rank 上不一致（{where}）"},
    )


def changed_settings(expected: Sequence[dict[str, str]], got: Sequence[dict[str, str]]) -> list[str]:
    """What an optimizer's groups hold in one run and otherwise in another."""
    return [
        f"{key}: {_short(group[key])} → {_short(other.get(key, '–'))}"
        for group, other in zip(expected, got, strict=False)
        for key in group
        if group[key] != other.get(key)
    ]


def _short(value: str) -> str:
    """A number with six digits, anything else as it is."""
    with suppress(ValueError):
        return f"{float(value):.6g}"
    return value


def _scaled_by_rank(case: Case) -> Finding | None:
    """The ranks step with multiples of one gradient: by chance that is so only where there are very few numbers."""
    if any("clipped_gradient" not in trace.vectors for trace in case.ranks):
        return None
    first, *others = (trace.clipped_gradient for trace in case.ranks)
    if first.numel < FEW or not first.finite:
        return None
    found = [parameters.common_factor(first, other) for other in others]
    ratios = [1.0, *(factor for factor, _ in found)]
    if any(missed > case.near for _, missed in found) or max(ratios) - min(ratios) <= case.apart * max(ratios):
        return None
    if min(ratios) <= 0 or any(trace.clips for trace in case.ranks):
        return None  # a clip by each rank's own norm is told by that norm
    return finding(case, "scaled_by_rank", ratios=numbers(ratios))


def _skipped_alone(case: Case) -> Finding | None:
    """Some ranks stepped less often than others."""
    steps = {trace.rank: trace.steps for trace in case.ranks}
    least = min(case.ranks, key=lambda trace: trace.steps)
    part_of_all = all(set(least.owned) <= set(trace.owned) for trace in case.ranks)
    if len(set(steps.values())) == 1 or case.staged or not part_of_all:
        return None
    stepped = [trace.rank for trace in case.ranks if trace.steps]
    empty = [rank for rank, row in enumerate(case.counts) if not row.sum()]
    if empty and set(stepped) & set(empty):
        return finding(
            case,
            "stepped_on_empty",
            where={"en": f"rank {listing(empty)}", "zh": f"rank {listing(empty)}"},
            moved={"en": "its model", "zh": "它的模型"},
        )
    times = listing([f"rank {rank}: {often}" for rank, often in steps.items()])
    return finding(case, "skipped_alone", times=times, why=_why_skipped(case))


def _why_skipped(case: Case) -> Text:
    least = min(trace.steps for trace in case.ranks)
    skipping = [trace.rank for trace in case.ranks if trace.steps == least and "skip" in trace.events]
    if not skipping:
        return {"en": "", "zh": ""}
    which = listing(skipping)
    return {
        "en": f"The scaler of rank {which} found a gradient that is not finite, and skipped there alone. ",
        "zh": f"rank {which} 的 scaler 发现了非有限的梯度，并只在那里跳过了。",
    }


def _why_not_reduced(case: Case) -> Text:
    first = case.ranks[0]
    if not any(trace.collectives for trace in case.ranks):
        return {"en": "No collective was issued at all.", "zh": "没有发起任何集合通信。"}
    if first.forwards["ddp"] or first.forwards["ddp without synchronisation"]:
        return _why_not_by_ddp(case)
    called = [event.removeprefix("collective ") for event in first.events if event.startswith("collective ")]
    if not called:
        return {
            "en": "No forward went through DistributedDataParallel: is ddp.module, or the bare model, called?",
            "zh": "没有一次前向经过 DistributedDataParallel：是否调用了 ddp.module 或未包装的模型？",
        }
    counted = ", ".join(f"{name} ×{called.count(name)}" for name in dict.fromkeys(called))
    return {
        "en": f"The step reduces by hand (rank 0 called {counted} outside the backward): not everything that every "
        "backward added is in there.",
        "zh": f"归约是手写的（rank 0 在反向之外调用了 {counted}）：并非每次反向所加的一切都在其中。",
    }


def _why_not_by_ddp(case: Case) -> Text:
    first = case.ranks[0]
    apart = _apart(case)
    outside = [name for name in apart if name not in first.wrapped]
    if outside and len(outside) == len(apart):
        return {
            "en": f"{listing(outside)} is no parameter of the module that DistributedDataParallel wraps: reduce it by "
            "hand, or put it into that module.",
            "zh": f"{listing(outside)} 不是 DistributedDataParallel 所包装模块的参数：应手动归约，或放进该模块。",
        }
    without = first.forwards["ddp without synchronisation"]
    forwards = [event for event in first.events if event.startswith("forward")]
    unused = sorted({name for trace in case.ranks for name in trace.none_gradients})
    if without and not first.forwards["ddp"]:
        return {
            "en": "Every forward of the wrapper ran inside no_sync().",
            "zh": "包装模块的每次前向都在 no_sync() 里。",
        }
    if without and forwards and forwards[-1] == "forward in no_sync":
        return {
            "en": "The last forward ran inside no_sync(); what counts is where the forward runs, not the backward.",
            "zh": "最后一次前向在 no_sync() 里；起作用的是前向所在的位置，而不是反向。",
        }
    if unused:
        return {
            "en": f"{listing(unused)} had no gradient: one unused parameter leaves its whole bucket unreduced "
            "(find_unused_parameters, or static_graph).",
            "zh": f"{listing(unused)} 没有梯度：一个未用到的参数会让它所在的整个桶都不归约"
            "（用 find_unused_parameters 或 static_graph）。",
        }
    return {
        "en": "Why is not known; two forwards before two backwards, or a forward outside the wrapper, do this.",
        "zh": "原因不明；两次前向后再两次反向，或绕过包装模块的前向，会这样。",
    }


def _apart(case: Case) -> list[str]:
    if any("clipped_gradient" not in trace.vectors for trace in case.ranks):
        return []
    first = case.ranks[0].clipped_gradient
    others = [trace.clipped_gradient for trace in case.ranks[1:]]
    return differing(first, others, case.atol * max(first.scale, compare.SMALL))[0]
