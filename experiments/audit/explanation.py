"""From the first difference to its cause: what the events, the norms and the cells' own gradients say."""

from collections.abc import Sequence

from samestep.app.evidence.bags import Text
from samestep.experiments.audit import compare, norms, parameters, precision
from samestep.experiments.audit.case import Case
from samestep.experiments.audit.compare import Difference
from samestep.experiments.audit.gradients import explain_gradient, which_samples
from samestep.experiments.audit.replicas import changed_settings, explain_replicas
from samestep.experiments.audit.report import Finding
from samestep.experiments.audit.wording import finding, listing, numbers, unknown

Found = dict[str, Difference | None]


def explain(case: Case, found: Found, first: str) -> Finding:
    """The finding for the stage that differs first."""
    if first == "samples":
        return _samples(case)
    if first == "loss":
        return unknown(
            case,
            "The update is the same; the loss that was differentiated is not: a term without a gradient.",
            "更新相同；但被求导的 loss 不同：其中有一项没有梯度。",
        )
    by_events = _events(case)
    if first == "replicas":
        return by_events or explain_replicas(case) or _norm(case)
    if by_events:
        return by_events
    if first == "gradient":
        return explain_gradient(case, found)
    if first == "norm":
        return _norm(case)
    if first == "clipped_gradient":
        return _clipped(case)
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


def _events(case: Case) -> Finding | None:
    """Causes that show in the order of things."""
    expected = case.reference
    leftover = max(trace.leftover for trace in case.ranks)
    if leftover > 0 and expected.leftover == 0:
        return finding(case, "stale_gradient", leftover=leftover)
    steps = max(trace.steps for trace in case.ranks)
    if steps > max(expected.steps, 1) and min(trace.steps for trace in case.ranks) == steps:
        return finding(case, "step_inside_window", steps=steps, expected=expected.steps)
    if case.clips_each_microbatch:
        return finding(case, "per_microbatch_clip")
    scaled = next((trace for trace in case.ranks if _clipped_scaled(trace.events)), None)
    if scaled is not None and scaled.loss_scale not in (None, 1.0):
        return finding(case, "clip_before_unscale", scale=scaled.loss_scale)
    return None


def _clipped_scaled(events: Sequence[str]) -> bool:
    """A clip comes after the last backward and before unscale_ (or without it)."""
    if "backward" not in events:
        return False
    last = len(events) - 1 - list(reversed(events)).index("backward")
    after = events[last:]
    clip = next((i for i, event in enumerate(after) if event in ("clip", "note norm")), None)
    return clip is not None and "unscale" not in after[:clip]


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
        factor = case.named(found[0] / expected[-1]) if expected[-1] else None
        named = f" ({factor.name}×)" if factor and factor.names else ""
        return unknown(
            case,
            f"The gradient is right, its norm is not: {numbers(found)} instead of {expected[-1]:.6g}{named}.",
            f"梯度正确，范数不对：{numbers(found)}，应为 {expected[-1]:.6g}{named}。",
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
            found=numbers(found[:1]),
            expected=numbers(expected[-1:]),
        )
    return finding(case, fault.cause, norms=numbers(found), expected=numbers(expected[-1:]), norm_rows=_rows(found))


def _rows(values: Sequence[float]) -> str:
    return ";".join(f"{value:.6g}" for value in values)


def _clipped(case: Case) -> Finding:
    expected, found = case.reference.clipped_gradient, case.ranks[0].clipped_gradient
    factor, residual = parameters.common_factor(expected, found)
    if residual < case.near:
        named = case.named(factor)
        return finding(
            case,
            "scale",
            factor=named.name,
            names=named.names,
            usual={"en": "the gradient is scaled after the clip or the norm", "zh": "梯度在裁剪或求范数之后又被缩放"},
        )
    carried = precision.carried_in(expected, found, parameters.residual(expected, found))
    if carried:
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
        return unknown(
            case,
            f"The gradient is right, the optimizer steps with other settings ({'; '.join(changed)}).",
            f"梯度正确，但优化器的设置不同（{'；'.join(changed)}）。",
        )
    if case.ranks[0].steps == 0 and case.reference.steps:
        return unknown(case, "optimizer.step() was never called.", "没有调用 optimizer.step()。")
    difference = found[first]
    where = listing([name for name, _ in difference.tensors]) if difference else ""
    state = found["optimizer_state"]
    if first == "parameters" and state is not None and state.there:
        where = f"{listing([name for name, _ in state.tensors])}; {where}"
        return finding(case, "optimizer_state", where={"en": where, "zh": where})
    if first == "optimizer_state":
        return finding(case, "optimizer_state", where={"en": where, "zh": where})
    return unknown(
        case,
        f"Gradients agree, parameters do not ({where}): does something move them beside the optimizer?",
        f"梯度一致，参数却不同（{where}）：除了优化器还有什么在改动它们？",
    )
