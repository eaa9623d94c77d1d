"""What the reader's own lines do to a gradient between the last backward and the step: scale it, clip it, reduce it.

The gradient as the last backward left it ("computed") shows what such lines began with. On a rank it is this rank's
part where the reduction is by hand, and the whole where a wrapper has reduced it.
"""

from collections.abc import Iterable
from math import isclose

from samestep.app.evidence.bags import Text
from samestep.experiments.audit.judging import compare, parameters
from samestep.experiments.audit.judging.case import Case
from samestep.experiments.audit.running.trace import PART, Trace
from samestep.experiments.audit.running.vectors import Array, Vectors
from samestep.experiments.audit.telling.report import Finding
from samestep.experiments.audit.telling.wording import finding, listing, number

EPSILON = 1e-6
"""What clip_grad_norm_ adds to the norm that it divides by."""


def clipped_by_hand(case: Case, factor: float) -> Finding | None:
    """A uniform factor that a hand-written clip makes: the gradient before it is right, so its norm was not.

    In the reference the clip made k* = limit/n* of the gradient, here k = limit/n: so n/n* = k*/k.
    """
    expected, before = case.reference.vectors.get("computed"), _computed_by_all(case)
    if expected is None or before is None or case.gradient is None:
        return None
    there, missed = parameters.common_factor(expected, case.reference.gradient)
    scaled, apart = parameters.common_factor(before, case.gradient)
    whole, other = parameters.common_factor(expected, before)
    if max(missed, apart, other) > case.near or not 0 < there < 1 - case.apart:
        return None
    if not any(isclose(whole, right, rel_tol=case.apart) for right in (1.0, 1.0 / case.processes)):
        return None  # a sum of the ranks' parts, or their mean
    scaled *= whole
    norm = there / scaled
    named = case.named(norm)
    if "sqrt(P)" in named.names:
        return finding(
            case,
            "copies_counted",
            what={"en": "every parameter", "zh": "每个参数"},
            times=case.processes,
            found=f"{number(norm)} ν",
            expected="ν",
            evidence=(BY_HAND,),
        )
    return None


BY_HAND: Text = {
    "en": "Told from a hand-written clip: the gradient before it is right, and it is scaled down by √P more than on "
    'one process. ctx.note("norm", norm) before the scaling would show the norm itself.',
    "zh": "由手写的裁剪推断：裁剪之前的梯度正确，裁剪之后却只有单进程的 1/√P。在缩放之前调用 "
    'ctx.note("norm", norm) 即可直接看到范数。',
}


def _computed_by_all(case: Case) -> Vectors | None:
    """What the last backward left: the same on all ranks, or the mean of what each has."""
    found = [trace.vectors.get("computed") for trace in case.ranks]
    there = [each for each in found if each is not None]
    if len(there) < len(found):
        return None
    if not compare.replicas(case.ranks, "computed", case.atol).there:
        return there[0]
    return _total(case, there, "mean_computed", 1.0 / len(there))


def _total(case: Case, parts: Iterable[Vectors], name: str, times: float) -> Vectors:
    total: dict[str, Array] = {}
    for part in parts:
        for each in part:
            total[each] = total[each] + part[each] if each in total else part[each].copy()
    return Vectors.write(case.folder / f"{name}.f64", {each: times * values for each, values in total.items()})


def clipped_before_division(case: Case) -> Finding | None:
    """The clip looks at a gradient that is f times the right one, and f is divided out afterwards."""
    trace = case.ranks[0]
    if not trace.clips or trace.clips[-1].limit is None or trace.clips[-1].norm is None or case.gradient is None:
        return None
    before, missed = parameters.common_factor(case.reference.gradient, case.gradient)
    after, apart = parameters.common_factor(case.gradient, trace.clipped_gradient)
    clip = trace.clips[-1]
    assert clip.limit is not None
    assert clip.norm is not None
    coefficient = min(1.0, clip.limit / (clip.norm + EPSILON))
    divided = after / coefficient if coefficient else 0.0
    if max(missed, apart) > case.near or abs(before - 1) < case.apart or abs(divided - 1) < case.apart:
        return None
    if not isclose(before * divided, 1.0, rel_tol=max(1e-5, case.apart)):  # the limit's own rounding
        return None
    named = case.named(before)
    return finding(
        case,
        "clip_before_division",
        names=named.names,
        factor=f"{named.name} = {number(before)}" if named.names else number(before),
        norm=number(clip.norm),
        expected=number(case.reference.norms[-1]) if case.reference.norms else number(case.reference.gradient.norm),
        limit=number(clip.limit),
    )


def lost_in_reduction(case: Case) -> Finding | None:
    """What all backwards of all ranks added is the right gradient, but not what the optimizer gets."""
    added = contributions(case.ranks)
    if not added or case.gradient is None or case.processes == 1:
        return None
    total = _total(case, added, "contributed", 1.0)
    expected = case.reference.vectors.get("computed") or case.reference.gradient
    factor, missed = parameters.common_factor(expected, total)
    if missed > case.near or (abs(factor - 1) > case.apart and not case.named(factor).names):
        return None
    wrong = [row.name for row in case.rows() if row.status not in ("same", "zero")]
    residual = parameters.residual(case.reference.gradient, case.gradient)
    through = _what_loses_it(case, expected)
    return finding(case, "lossy_reduction", through=through, residual=residual, wrong=listing(wrong))


def _what_loses_it(case: Case, expected: Vectors) -> Text:
    """As far as it can be told from what the last backward left on every rank."""
    hooks = list(dict.fromkeys(hook for trace in case.ranks for hook in trace.hooks))
    left = [trace.vectors.get("computed") for trace in case.ranks]
    known = [each for each in left if each is not None]
    if len(known) == len(left):
        if not compare.replicas(case.ranks, "computed", case.atol).there:
            if not compare.vectors(expected, known[0], case.atol).there:
                return {"en": "what the step does to it after the reduction", "zh": "归约之后这一步对梯度的处理"}
        elif all(map(_is_sum_of_its_parts, [case] * len(left), case.ranks)):
            return {
                "en": "what the step does between the last backward and its end, the reduction included,",
                "zh": "最后一次反向之后这一步的处理（包括归约）",
            }
        else:
            return {"en": "what the step does to it between two backwards", "zh": "两次反向之间这一步对梯度的处理"}
    if hooks:
        return {"en": f"the hook {listing(hooks)}", "zh": f"钩子 {listing(hooks)}"}
    return {"en": "the reduction", "zh": "归约"}


def _is_sum_of_its_parts(case: Case, trace: Trace) -> bool:
    """Whether the last backward left what this rank's backwards have added."""
    own = _total(case, contributions([trace]), f"own{trace.rank}", 1.0)
    return not compare.vectors(own, trace.vectors["computed"], case.atol).there


def of_parts(case: Case, norm: float) -> bool:
    """Whether this norm is √Σ_r ‖g_r‖² of what the ranks had before the reduction, or of P times that."""
    if case.processes == 1 or not all(trace.parts for trace in case.ranks):
        return False
    squares = 0.0
    for trace in case.ranks:
        own = _total(case, contributions([trace]), f"own{trace.rank}", 1.0)
        squares += own.norm**2
    return any(isclose(norm, squares**0.5 / divisor, rel_tol=case.apart) for divisor in (1, case.processes))


def contributions(ranks: Iterable[Trace]) -> list[Vectors]:
    """What every backward of every rank added, if that is known of every rank."""
    found = [[trace.vectors[PART.format(k)] for k in range(trace.parts)] for trace in ranks]
    return [each for mine in found for each in mine] if all(found) else []
