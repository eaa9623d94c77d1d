"""A term that does not depend on the samples, such as weight decay or a penalty, that counts another number of times.

In the gradient its trace is a multiple of the parameters themselves (for a square), or one summand of the loss whose
gradient is the same for every part of the batch. After the step it is a multiple of the parameters as they were before.
"""

import numpy as np

from samestep.app.evidence.bags import Text
from samestep.experiments.audit.judging.case import Case
from samestep.experiments.audit.running.vectors import Vectors
from samestep.experiments.audit.telling.report import Finding
from samestep.experiments.audit.telling.wording import finding, listing, number

CLEAR = 1e-6
"""Relative residual below which tensors are a multiple of each other."""


def _multiple(
    expected: Vectors, got: Vectors, initial: Vectors, allowed: float, clear: float
) -> tuple[float, list[str]]:
    """c with got - expected = c · initial in every tensor that differs, and their names; 0 where there is none."""
    names, factors = [], []
    for name in got:
        if name not in expected or name not in initial or expected.shape(name) != got.shape(name):
            return 0.0, []
        apart = got[name] - expected[name]
        if np.max(np.abs(apart), initial=0.0) <= allowed:
            continue
        before = initial[name]
        square = float(np.vdot(before, before))
        factor = float(np.vdot(before, apart)) / square if square else 0.0
        if not factor or float(np.linalg.norm(apart - factor * before)) > clear * float(np.linalg.norm(apart)):
            return 0.0, []
        names.append(name)
        factors.append(factor)
    if (
        not factors
        or max(factors) - min(factors) > clear * abs(factors[0])
        or sum(initial.size(name) for name in names) < 2
    ):
        return 0.0, []
    return factors[0], names


def penalty_in_gradient(case: Case) -> Finding | None:
    """The gradient is off by a multiple of the parameters."""
    if case.gradient is None or "initial" not in case.reference.vectors:
        return None
    expected, initial = case.reference.gradient, case.reference.vectors["initial"]
    clear = max(CLEAR, 100 * case.near)
    factor, names = _multiple(expected, case.gradient, initial, case.atol * expected.scale, clear)
    if not names or clear > 0.1:
        return None
    times, evidence = _times(case, factor)
    return regulariser(case, times, names, evidence)


def _times(case: Case, excess: float) -> tuple[float | None, tuple[Text, ...]]:
    """How often it counts, where lines of the reader's add it by hand in the reference as well."""
    computed, initial = case.reference.vectors.get("computed"), case.reference.vectors["initial"]
    shown: tuple[Text, ...] = (
        {
            "en": f"The gradient is off by {number(excess)} times the parameters.",
            "zh": f"梯度与正确值相差参数自身的 {number(excess)} 倍。",
        },
    )
    if computed is None:
        return None, shown
    once, names = _multiple(computed, case.reference.gradient, initial, 0.0, CLEAR)
    return ((once + excess) / once if names and once else None), shown


def decay_after_the_step(case: Case) -> Finding | None:
    """The parameters are off by a multiple of what they were before the step: λ acts K times, (1-λ)^K, not once."""
    if "initial" not in case.reference.vectors:
        return None
    expected, got = case.reference.parameters, case.ranks[0].parameters
    initial = case.reference.vectors["initial"]
    factor, names = _multiple(expected, got, initial, case.atol * expected.scale, max(1e-4, 100 * case.near))
    if not names:
        return None
    evidence: Text = {
        "en": f"After the step the parameters are off by {number(factor)} times what they were before it.",
        "zh": f"更新之后，参数与正确值相差更新前自身的 {number(factor)} 倍。",
    }
    return regulariser(case, None, names, (evidence,))


def regulariser(case: Case, times: float | None, names: list[str], evidence: tuple[Text, ...] = ()) -> Finding:
    """The finding; `times` where it is known how often the term counts instead of once."""
    named = case.named(times) if times else None
    how: Text = {"en": "another number of times than once", "zh": "的次数不是一次"}
    if named:
        factor = f"{named.name} = {number(named.value)}" if named.names else number(named.value)
        how = {"en": f"{factor} times instead of once", "zh": f"被计入 {factor} 次，而不是一次"}
    return finding(
        case,
        "regulariser",
        names=named.names if named else (),
        evidence=evidence,
        how=how,
        which=listing(names),
    )
