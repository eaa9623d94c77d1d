"""An answer beside the numbers that a case file expects of it."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from samestep.app.contract.errors import InputError
from samestep.app.contract.models import Result
from samestep.app.contract.paths import NoSuchStepError, value_at

MAX_VALUES = 10_000
MAX_DEPTH = 32
LONGEST_PATH = 200
DEFAULT_TOLERANCE = {"rtol": 1e-9, "atol": 1e-12}


class Difference(NamedTuple):
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


def check(expected: Mapping[str, Any]) -> None:
    """InputError where there is more to compare than a reader looks at, or a number that no answer can be."""
    for count, (_, value) in enumerate(_leaves(expected, ()), start=1):
        if count > MAX_VALUES:
            en, zh = f"holds more than {MAX_VALUES:,} values to compare", f"待比较的值超过 {MAX_VALUES:,} 个"
            raise InputError(en, zh, field="expected", code="too_long")
        if type(value) is int:
            try:
                float(value)
            except OverflowError:
                en, zh = "holds a number beyond float64's range", "含有超出 float64 范围的数"
                raise InputError(en, zh, field="expected", code="number_range") from None


def compare(expected: Mapping[str, Any], view: Result, tolerance: Mapping[str, float]) -> Comparison:
    """Compare leaf by leaf: numbers agree where |got - expected| <= atol + rtol·|expected|, all else where equal.

    `expected` has passed `check`.
    """
    rtol, atol = (float(tolerance.get(name, DEFAULT_TOLERANCE[name])) for name in ("rtol", "atol"))
    agree, differing, unanswered = 0, [], []
    for path, value, got in _in_step(expected, view.model_dump(mode="json"), ()):
        if got is _MISSING:
            unanswered.append(_written(path))
        elif _agree(value, got, rtol, atol):
            agree += 1
        else:
            differing.append(Difference(_written(path), value, got))
    return Comparison(agree, agree + len(differing), tuple(differing), tuple(unanswered), rtol, atol)


_Path = tuple[str, ...]
_MISSING: Any = object()


def _written(path: _Path) -> str:
    text = ".".join(path)
    return text if len(text) <= LONGEST_PATH else text[:LONGEST_PATH] + "…"


def _entries(value: Any) -> Iterable[tuple[str, Any]]:
    """The entries of an object or a list; none of what is a leaf."""
    if isinstance(value, Mapping):
        return value.items()
    return ((str(index), entry) for index, entry in enumerate(value)) if isinstance(value, list) else ()


def _leaves(value: Any, path: _Path) -> Iterator[tuple[_Path, Any]]:
    """Every value with its path; InputError where they lie too deep."""
    if len(path) > MAX_DEPTH:
        raise InputError(f"is nested more than {MAX_DEPTH} deep", f"嵌套超过 {MAX_DEPTH} 层", "expected", "too_deep")
    if not (isinstance(value, Mapping | list) and value):
        yield path, value
    for name, entry in _entries(value):
        yield from _leaves(entry, (*path, name))


def _in_step(expected: Any, answer: Any, path: _Path) -> Iterator[tuple[_Path, Any, Any]]:
    """Every expected value, with the answer's value at the same place: null below a null, _MISSING where there is
    none."""
    if answer is None or answer is _MISSING or not (isinstance(expected, Mapping | list) and expected):
        for inner, value in _leaves(expected, path):
            yield inner, value, answer
        return
    for name, entry in _entries(expected):
        yield from _in_step(entry, _entry_of(answer, name), (*path, name))


def _entry_of(answer: Any, name: str) -> Any:
    try:
        return value_at(answer, name) if 0 < len(name) <= LONGEST_PATH else _MISSING
    except NoSuchStepError:
        return _MISSING


def _agree(expected: Any, got: Any, rtol: float, atol: float) -> bool:
    if isinstance(expected, bool) or isinstance(got, bool):
        return expected is got
    if isinstance(expected, int | float) and isinstance(got, int | float):
        return math.isclose(got, expected, rel_tol=0.0, abs_tol=atol + rtol * abs(expected))
    return bool(expected == got)
