"""An answer beside the numbers that a case file expects of it."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from app.contract import Result

DEFAULT_TOLERANCE = {"rtol": 1e-9, "atol": 1e-12}


@dataclass(frozen=True)
class Leaf:
    """One value of nested JSON, by its dotted path; `reason` is what the innermost object around it gives as one."""

    path: str
    value: Any
    reason: str | None = None


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


def leaves(value: Any, path: str = "", reason: str | None = None) -> Iterator[Leaf]:
    """Every value of nested JSON; an empty list or object is a value of its own."""
    if isinstance(value, Mapping) and value:
        reason = value.get("reason") or reason
        for name, entry in value.items():
            yield from leaves(entry, f"{path}.{name}" if path else str(name), reason)
    elif isinstance(value, list) and value:
        for i, entry in enumerate(value):
            yield from leaves(entry, f"{path}.{i}" if path else str(i), reason)
    else:
        yield Leaf(path, value, reason)


def compare(expected: Any, view: Result, tolerance: Mapping[str, float]) -> Comparison:
    """Compare leaf by leaf: numbers agree where |got - expected| <= atol + rtol·|expected|, all else where equal."""
    answer = view.model_dump(mode="json")
    rtol, atol = (float(tolerance.get(name, DEFAULT_TOLERANCE[name])) for name in ("rtol", "atol"))
    agree, differing, unanswered = 0, [], []
    for leaf in leaves(expected):
        found, got = _look_up(answer, leaf.path)
        if not found:
            unanswered.append(leaf.path)
        elif _agree(leaf.value, got, rtol, atol):
            agree += 1
        else:
            differing.append(Difference(leaf.path, leaf.value, got))
    return Comparison(agree, agree + len(differing), tuple(differing), tuple(unanswered), rtol, atol)


_NOTHING = object()


def _look_up(answer: Any, path: str) -> tuple[bool, Any]:
    """Whether the answer has a value at a path, and the value; what lies below a null is null.

    Names may contain dots themselves, so that every way of cutting the path is tried, the shortest names first.
    """
    if not path:
        return True, answer
    if answer is None:
        return True, None
    steps = path.split(".")
    for end in range(1, len(steps) + 1):
        child = _child(answer, ".".join(steps[:end]))
        if child is not _NOTHING:
            found, value = _look_up(child, ".".join(steps[end:]))
            if found:
                return True, value
    return False, None


def _child(answer: Any, name: str) -> Any:
    if isinstance(answer, Mapping):
        return answer.get(name, _NOTHING)
    if isinstance(answer, list) and name.isdecimal() and int(name) < len(answer):
        return answer[int(name)]
    return _NOTHING


def _agree(expected: Any, got: Any, rtol: float, atol: float) -> bool:
    if isinstance(expected, bool) or isinstance(got, bool):
        return expected is got
    if isinstance(expected, int | float) and isinstance(got, int | float):
        return math.isclose(got, expected, rel_tol=0.0, abs_tol=atol + rtol * abs(expected))
    return bool(expected == got)
