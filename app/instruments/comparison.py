"""An answer beside the numbers that a case file expects of it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from samestep.app.contract.models import Result
from samestep.app.contract.paths import NoSuchStepError, along, leaves

DEFAULT_TOLERANCE = {"rtol": 1e-9, "atol": 1e-12}


@dataclass(frozen=True)
class Difference:
    path: str
    expected: Any
    got: Any


@dataclass(frozen=True)
class Comparison:
    """`total` values are expected and answered; `agree` of them agree, the rest are `differing`.

    `unanswered` are the paths that the answer does not have.
    """

    agree: int
    total: int
    differing: tuple[Difference, ...]
    unanswered: tuple[str, ...]
    rtol: float
    atol: float


def compare(expected: Any, view: Result, tolerance: Mapping[str, float]) -> Comparison:
    """Compare leaf by leaf: numbers agree where |got - expected| <= atol + rtol·|expected|, all else where equal."""
    answer = view.model_dump(mode="json")
    rtol, atol = (float(tolerance.get(name, DEFAULT_TOLERANCE[name])) for name in ("rtol", "atol"))
    agree, differing, unanswered = 0, [], []
    for leaf in leaves(expected):
        try:
            got = _answered(answer, leaf.path)
        except NoSuchStepError:
            unanswered.append(leaf.path)
            continue
        if _agree(leaf.value, got, rtol, atol):
            agree += 1
        else:
            differing.append(Difference(leaf.path, leaf.value, got))
    return Comparison(agree, agree + len(differing), tuple(differing), tuple(unanswered), rtol, atol)


def _answered(answer: Any, path: str) -> Any:
    """The answer's value at a path; what lies below a null is null."""
    for value in along(answer, path):
        if value is None:
            return None
        answer = value
    return answer


def _agree(expected: Any, got: Any, rtol: float, atol: float) -> bool:
    if isinstance(expected, bool) or isinstance(got, bool):
        return expected is got
    if isinstance(expected, int | float) and isinstance(got, int | float):
        return math.isclose(got, expected, rel_tol=0.0, abs_tol=atol + rtol * abs(expected))
    return bool(expected == got)
