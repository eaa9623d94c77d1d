"""What happens to the parameters after the optimizer's step: an average, a projection, a decay by hand.

s are the parameters as the last step left them, the same on all ranks as on one process; e and o are those at the end,
expected and observed. Where e - s = c (a - s) for an anchor a, the reference tells c, and o - s how often it was done:

    a = 0, a decay by 1 - c                                          n times: 1 - (1 - c)ⁿ in place of c
    a = the parameters before the update, as in lookahead: a slow
    copy goes α = 1 - c of the way to s, and becomes the parameters    n times: cⁿ in place of c
"""

from collections.abc import Sequence

from samestep.app.evidence.bags import Text
from samestep.experiments.audit.judging import compare
from samestep.experiments.audit.judging.case import Case
from samestep.experiments.audit.judging.compare import Difference
from samestep.experiments.audit.judging.explaining.constants import regulariser
from samestep.experiments.audit.judging.explaining.pulls import pull, times_of
from samestep.experiments.audit.running.vectors import Array, Vectors
from samestep.experiments.audit.telling.report import Finding
from samestep.experiments.audit.telling.wording import finding, listing, number

OTHERWISE: Text = {"en": "otherwise than on one process", "zh": "改法与单进程不同"}
NOT_THERE: Text = {"en": "on one process nothing does", "zh": "单进程上没有这样的改动"}
BY_ITSELF: Text = {"en": "each rank in its own way", "zh": "各 rank 改法不同"}


def changed_after_the_step(case: Case, difference: Difference | None) -> Finding | None:
    """A finding if the optimizers leave the same parameters and these differ at the end."""
    if difference is None or not _left_the_same(case):
        return None
    names = [name for name, apart in difference.tensors if apart > difference.allowed]
    expected, got = case.reference.parameters, case.ranks[0].parameters
    start = case.reference.vectors.get("stepped", expected)
    if not names or not all(name in each for name in names for each in (expected, got, start)):
        return None
    once, often = ([end[name] - start[name] for name in names] for end in (expected, got))
    decay, more = (pull([-start[name] for name in names], moved) for moved in (once, often))
    if times := times_of(1 - decay, 1 - more):
        return regulariser(case, float(times), names, (_so_often(decay),))
    return finding(case, "changed_after_step", which=listing(names), how=_how(case, names, start, once, often))


def _how(case: Case, names: Sequence[str], start: Vectors, once: Sequence[Array], often: Sequence[Array]) -> Text:
    """How otherwise than on one process, as far as the differences say so."""
    if "stepped" not in case.reference.vectors:
        return NOT_THERE
    begin = case.reference.vectors.get("initial")
    if begin is not None and all(name in begin for name in names):
        left, less = (pull([begin[name] - start[name] for name in names], moved) for moved in (once, often))
        if times := times_of(left, less):
            return _interpolated(case, times, 1 - left)
    factor = pull(once, often)
    if not factor:
        return OTHERWISE
    named = case.named(factor)
    shown = f"{named.name} = {number(factor)}" if named.names else number(factor)
    return {"en": f"{shown} times as far as on one process", "zh": f"改动的幅度是单进程的 {shown} 倍"}


def changed_by_each(case: Case, difference: Difference | None) -> Finding | None:
    """The same, where it is the ranks that end with different parameters."""
    if not _left_the_same(case):
        return None
    apart = [name for name, size in difference.tensors if size > difference.allowed] if difference else []
    return finding(case, "changed_after_step", which=listing(apart), how=BY_ITSELF)


def _left_the_same(case: Case) -> bool:
    """All ranks' optimizers leave what the reference's does, and not all of these parameters stay so."""
    traces = (case.reference, *case.ranks)
    if not any("stepped" in trace.vectors for trace in traces) or "gradient" not in case.reference.vectors:
        return False
    expected, *found = (trace.vectors.get("stepped", trace.parameters) for trace in traces)
    lenient = compare.noise(case.reference.gradient)
    return not any(compare.vectors(expected, each, case.atol, lenient).there for each in found)


def _so_often(decay: float) -> Text:
    return {
        "en": f"On one process the parameters are multiplied by {number(1 - decay)} once, after the step.",
        "zh": f"单进程上，参数在 step 之后只乘一次 {number(1 - decay)}。",
    }


def _interpolated(case: Case, times: int, weight: float) -> Text:
    named = case.named(float(times))
    shown = f"{named.name} = {times}" if named.names else str(times)
    return {
        "en": f"{shown} interpolations of weight {number(weight)} from where they were before the update, in place of "
        "one",
        "zh": f"从更新前的位置做了 {shown} 次权重为 {number(weight)} 的插值，而不是一次",
    }
