"""Faults in the order of things that both runs share: they agree, and both are wrong, or will be at the next update.

Only what was seen to happen counts. What needs a second call to show, where there was none, is a note.
"""

from collections.abc import Sequence

from samestep.app.evidence.bags import Text
from samestep.experiments.audit.judging.case import Case
from samestep.experiments.audit.judging.explaining.replicas import not_waited
from samestep.experiments.audit.judging.selfcheck import SelfCheck
from samestep.experiments.audit.running.trace import Run, Trace
from samestep.experiments.audit.telling.report import Finding
from samestep.experiments.audit.telling.wording import finding, listing, number

BOTH: Text = {
    "en": "Both runs agree, and so they are both wrong: the step does the same on one process.",
    "zh": "两次运行一致，因此两次都错：这一步在单进程上也这样做。",
}
SCALED_LIMIT = 1.0
"""A limit of so many loss scales or more is meant for the scaled gradient."""


def linted(case: Case, check: SelfCheck | None) -> Finding | None:
    """A fault of an update that is the same on one process and on several."""
    traces = (case.reference, *case.ranks)
    leftover = max(trace.leftover for trace in case.ranks)
    if leftover > 0:
        return finding(case, "stale_gradient", leftover=leftover, evidence=(BOTH,))
    scaled = next((trace for trace in case.ranks if clipped_scaled(trace)), None)
    if scaled is not None and scaled.loss_scale is not None and _unscaled_limit(scaled):
        return finding(case, "clip_before_unscale", scale=scaled.loss_scale, evidence=(BOTH,))
    if case.clips_each_microbatch:
        return finding(case, "per_microbatch_clip", evidence=(NOT_HERE,))
    if unwaited := not_waited(case):
        return unwaited
    if check is not None and check.cut and any(trace.detached for trace in traces):
        return detached(case, check)
    return None


NOT_HERE: Text = {
    "en": "Here no clip changed anything; as soon as one does, the update is another one.",
    "zh": "这里没有一次裁剪真正起作用；一旦起作用，更新就不同了。",
}


def detached(case: Case, check: SelfCheck) -> Finding:
    """A collective cut the graph on one process as well: its gradient is not the derivative of its loss."""
    names = list(dict.fromkeys(name for trace in (case.reference, *case.ranks) for name in trace.detached))
    evidence: Text = {
        "en": f"{listing(names)} was given a tensor with a gradient and returned one without. Already on one process "
        f"the gradient is not the derivative of the loss: along one direction it is {number(check.ratio)} times that.",
        "zh": f"{listing(names)} 收到带梯度的张量，返回的却不带。在单进程上梯度就已不是损失的导数："
        f"沿一个方向是它的 {number(check.ratio)} 倍。",
    }
    return finding(
        case,
        "detached_remote",
        wrong={"en": "the parameters behind it", "zh": "其后的参数"},
        evidence=(evidence, BOTH),
    )


def _unscaled_limit(trace: Trace) -> bool:
    scale = trace.loss_scale or 1.0
    limits = [clip.limit for clip in trace.clips if clip.limit is not None]
    return scale != 1.0 and all(limit < SCALED_LIMIT * scale for limit in limits)


def clipped_scaled(trace: Trace) -> bool:
    """A clip comes after the last backward and before unscale_ (or without it)."""
    events: Sequence[str] = trace.events
    if "backward" not in events:
        return False
    after = events[len(events) - 1 - list(reversed(events)).index("backward") :]
    clip = next((i for i, event in enumerate(after) if event in ("clip", "note norm")), None)
    return clip is not None and "unscale" not in after[:clip]


def remarks(reference: Run, runs: Sequence[Run], check: SelfCheck | None) -> list[Text]:
    """What is worth knowing of the order of things and decides nothing by itself."""
    found: list[Text] = []
    left = max((size for run in runs for size in run.updates[-1].left_behind.values()), default=0.0)
    zeroed = any(update.events.count("zero_grad") for run in runs for update in run.updates)
    if reference.once and left and not zeroed:
        found.append(
            {
                "en": "zero_grad() is never called, and gradients are left behind: the next update would add to them.",
                "zh": "从未调用 zero_grad()，梯度留了下来：下一次更新会加在它们上面。",
            }
        )
    cut = check is not None and check.cut
    if cut and check is not None and not any(run.updates[0].detached for run in (reference, *runs)):
        found.append(
            {
                "en": "The reference's gradient is not the derivative of its loss (along one direction it is "
                f"{number(check.ratio)} times that): a detached target, or a gradient changed by hand, does this on "
                "purpose; a piece of the graph that is missing, by mistake.",
                "zh": f"参考的梯度不是其损失的导数（沿一个方向是它的 {number(check.ratio)} 倍）："
                "若是有意的，可能是切断了梯度的目标，或手工改动的梯度；若是无意的，就是计算图断了一段。",
            }
        )
    return found
