"""From the first difference to its cause: what the events, the norms and the cells' own gradients say."""

from collections.abc import Sequence

import numpy as np

from samestep.app.evidence.bags import Text
from samestep.experiments.audit.judging import compare, norms, parameters, precision
from samestep.experiments.audit.judging.case import Case
from samestep.experiments.audit.judging.compare import Difference
from samestep.experiments.audit.judging.explaining.after_step import changed_after_the_step
from samestep.experiments.audit.judging.explaining.beside import explain_beside, explain_settings
from samestep.experiments.audit.judging.explaining.constants import decay_after_the_step
from samestep.experiments.audit.judging.explaining.gradients import explain_gradient, which_samples
from samestep.experiments.audit.judging.explaining.moving import moved_inside
from samestep.experiments.audit.judging.explaining.replicas import changed_settings, explain_replicas
from samestep.experiments.audit.judging.explaining.shards import update_on_shards, updates_averaged
from samestep.experiments.audit.judging.lints import clipped_scaled
from samestep.experiments.audit.running.handmade import of_parts
from samestep.experiments.audit.running.trace import Trace
from samestep.experiments.audit.telling.report import Finding
from samestep.experiments.audit.telling.wording import OWN_NORMS, OWN_VALUES, finding, listing, number, numbers, unknown

Found = dict[str, Difference | None]


def explain(case: Case, found: Found, first: str) -> Finding:
    """The finding for the stage that differs first."""
    by_events = explain_events(case)
    if first == "replicas":
        return by_events or explain_replicas(case) or _norm(case)
    if by_events:
        return by_events
    if first == "samples":
        return _samples(case)
    if first == "gradient":
        return explain_gradient(case, found)
    if first == "norm":
        return _norm(case)
    if first == "clipped_gradient":
        return _clipped(case)
    if first in ("buffers", "notes"):
        return explain_beside(case, found, first)
    return _after_the_gradient(case, found, first)


def _samples(case: Case) -> Finding:
    consumption = case.consumption
    assert consumption is not None
    if consumption.missing:
        text = which_samples(consumption.missing)
        return finding(case, "dropped_microbatch", which=text, evidence=_repeated(consumption.repeated))
    times = _times(consumption.repeated)
    return finding(case, "duplicated_samples", which={"en": f"sample {times}", "zh": f"样本 {times}"})


def _times(repeated: Sequence[tuple[int, float]]) -> str:
    return listing([f"{number} ({count:g}×)" for number, count in repeated])


def _repeated(repeated: Sequence[tuple[int, float]]) -> tuple[Text, ...]:
    if not repeated:
        return ()
    times = _times(repeated)
    return ({"en": f"Others count more than once: {times}.", "zh": f"另有样本被重复计入：{times}。"},)


def explain_events(case: Case) -> Finding | None:
    """Causes that show in the order of things."""
    expected = case.reference
    if late := _backward_after_the_step(case):
        return late
    steps = max(trace.steps for trace in case.ranks)
    if steps > max(expected.steps, 1) and min(trace.steps for trace in case.ranks) == steps:
        return finding(case, "step_inside_window", steps=steps, expected=expected.steps)
    leftover = max(trace.leftover for trace in case.ranks)
    if leftover > 0 and expected.leftover == 0:
        return finding(case, "stale_gradient", leftover=leftover)
    if case.clips_each_microbatch:
        return finding(case, "per_microbatch_clip")
    scaled = next((trace for trace in case.ranks if clipped_scaled(trace)), None)
    shared = expected.loss_scale is not None and clipped_scaled(expected)
    if scaled is not None and scaled.loss_scale not in (None, 1.0) and not shared:
        return finding(case, "clip_before_unscale", scale=scaled.loss_scale)
    return None


def _backward_after_the_step(case: Case) -> Finding | None:
    """Microbatches whose backward comes when the step is over: nothing steps with what they add."""
    if _late(case.reference) or not all(_late(trace) for trace in case.ranks):
        return None
    cells = [call for trace in case.ranks for call in trace.calls[-_late(trace) :]]
    which: Text = {"en": "those of the last microbatches", "zh": "最后几个微批的样本"}
    if all(cell is not None for cell in cells):
        which = which_samples(sorted(sample for cell in cells for sample in cell or ()))
    return finding(case, "dropped_microbatch", which=which, evidence=(AFTER_THE_STEP,))


AFTER_THE_STEP: Text = {
    "en": "Their backward comes after optimizer.step(): what it adds is lost, or left for the next update.",
    "zh": "它们的反向在 optimizer.step() 之后：所加的梯度不是丢失，就是留给了下一次更新。",
}


def _late(trace: Trace) -> int:
    """How many backwards come after the last step; 0 where there is no step."""
    if not trace.steps:
        return 0
    last = len(trace.events) - 1 - trace.events[::-1].index("step")
    return trace.events[last:].count("backward")


def _norm(case: Case) -> Finding:
    """Explain norms that are not the reference's."""
    expected = case.reference.norms or [case.reference.gradient.norm]
    found = [each[-1] if each else float("nan") for each in case.norms]
    if case.reduced_after_clip:
        fault: norms.NormFault | None = norms.NormFault("per_rank_clip")
    else:
        sharded = not compare.replicas(case.ranks, "gradient", case.atol).there
        fault = norms.explain(expected[-1], found, case.reference.gradient, sharded)
    if fault is None:
        if of_parts(case, found[0]):
            return unknown(case, *OF_PARTS, evidence=(OF_PARTS_HOW,))
        factor = case.named(found[0] / expected[-1]) if expected[-1] else None
        named = f" ({factor.name}×)" if factor and factor.names else ""
        return unknown(
            case,
            f"The gradient is right, its norm is not: {numbers(found)} instead of {number(expected[-1])}{named}.",
            f"梯度正确，范数不对：{numbers(found)}，应为 {number(expected[-1])}{named}。",
        )
    if fault.cause == "copies_counted":
        everything = len(fault.tensors) == len(case.reference.gradient)
        what: Text = (
            {"en": "every parameter", "zh": "每个参数"}
            if everything
            else {"en": listing(fault.tensors), "zh": listing(fault.tensors)}
        )
        return finding(
            case,
            "copies_counted",
            what=what,
            times=fault.times,
            found=number(found[0]),
            expected=number(expected[-1]),
        )
    return finding(
        case, fault.cause, how=OWN_NORMS, norms=numbers(found), expected=number(expected[-1]), norm_rows=_rows(found)
    )


OF_PARTS = (
    "The gradient is right; its norm is the root of the sum of the squares of what each rank had before the sum.",
    "梯度正确；但它的范数是各 rank 求和之前各自梯度平方和的根。",
)
OF_PARTS_HOW: Text = {
    "en": "The ranks' gradients are summands of one gradient, not shards of it: take the norm after they are reduced.",
    "zh": "各 rank 的梯度是同一个梯度的加数，而不是它的分片：应在归约之后取范数。",
}


def _rows(values: Sequence[float]) -> str:
    return ";".join(f"{value:.6g}" for value in values)


def _clipped(case: Case) -> Finding:
    expected, found = case.reference.clipped_gradient, case.clipped_gradient
    assert found is not None
    values = [clip for trace in case.ranks for clip in trace.clips if clip.kind == "value"]
    if case.reduced_after_clip and values:
        own = [trace.gradient.norm for trace in case.ranks]
        return finding(
            case,
            "per_rank_clip",
            how=OWN_VALUES,
            norms=numbers(own),
            expected=number(case.reference.gradient.norm),
            norm_rows=_rows(own),
        )
    factor, residual = parameters.common_factor(expected, found)
    if residual < case.near:
        named = case.named(factor)
        return finding(
            case,
            "scale",
            factor=f"{named.name} = {number(factor)}" if named.names else number(factor),
            names=named.names,
            usual={"en": "the gradient is scaled after the clip or the norm", "zh": "梯度在裁剪或求范数之后又被缩放"},
        )
    carried = precision.carried_in(expected, found, parameters.residual(expected, found))
    if carried and (case.goes_through(carried) or precision.is_exactly(found, carried)):
        return finding(case, "precision", type=carried, residual=parameters.residual(expected, found))
    return unknown(
        case,
        "The gradient and its norm are right, the clipped gradient is not.",
        "梯度及其范数都正确，裁剪后的梯度不对。",
    )


def _after_the_gradient(case: Case, found: Found, first: str) -> Finding:
    """The gradient is right: parameters or optimizer state are not."""
    silent = "clipped_gradient" not in case.reference.vectors or not case.reference.clipped_gradient.scale
    if silent and case.ranks[0].steps:
        moved: Text = (
            {"en": "the parameters", "zh": "参数"} if first == "parameters" else {"en": "its state", "zh": "其状态"}
        )
        return finding(case, "stepped_on_empty", where={"en": "a batch", "zh": "该批次"}, moved=moved)
    changed = changed_settings(case.reference.hyperparameters, case.ranks[0].hyperparameters)
    if changed:
        return finding(case, "settings", when=BEFORE, changed="; ".join(changed))
    if case.ranks[0].steps == 0 and case.reference.steps:
        return unknown(case, "optimizer.step() was never called.", "没有调用 optimizer.step()。")
    difference, state = found[first], found["optimizer_state"]
    where = listing([name for name, _ in difference.tensors if _ > difference.allowed]) if difference else ""
    if first == "optimizer_state":
        return explain_settings(case, difference) or finding(case, "optimizer_state", where={"en": where, "zh": where})
    for moved_by in (_not_stepped, lambda case, _: decay_after_the_step(case), changed_after_the_step):
        if found_out := moved_by(case, difference):
            return found_out
    if found_out := update_on_shards(case) or updates_averaged(case) or moved_inside(case):
        return found_out
    if state is not None and state.there:
        where = f"{listing([name for name, _ in state.tensors])}; {where}"
        return finding(case, "optimizer_state", where={"en": where, "zh": where})
    return unknown(
        case,
        f"Gradients agree, parameters do not ({where}): does something move them beside the optimizer?",
        f"梯度一致，参数却不同（{where}）：除了优化器还有什么在改动它们？",
    )


BEFORE: Text = {"en": "steps with other settings", "zh": "更新时的设置不同"}


def _not_stepped(case: Case, difference: Difference | None) -> Finding | None:
    """Only parameters differ that no optimizer owns, or that have no gradient on one process and zeros on the ranks."""
    if difference is None:
        return None
    wrong = [name for name, apart in difference.tensors if apart > difference.allowed]
    owned = {name for trace in (case.reference, *case.ranks) for name in trace.owned}
    if wrong and owned and not owned & set(wrong):
        return explain_beside(case, {"parameters": difference}, "parameters")
    gradient = case.ranks[0].vectors.get("clipped_gradient")
    if gradient is None or not set(wrong) <= set(case.reference.none_gradients):
        return None
    if all(name in gradient and not np.any(gradient[name]) for name in wrong):
        return finding(case, "zero_for_none", which=listing(wrong))
    return None
