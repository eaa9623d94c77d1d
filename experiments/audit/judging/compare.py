"""Compare a run of P ranks with the reference, stage by stage: the first difference is the one that explains most."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from samestep.experiments.audit.running.trace import Trace
from samestep.experiments.audit.running.vectors import Array, Vectors

STAGES = (
    "samples",
    "loss",
    "replicas",
    "gradient",
    "norm",
    "clipped_gradient",
    "parameters",
    "optimizer_state",
    "buffers",
    "notes",
)

SMALL = 1e-5
"""Numbers are compared relative to the greatest of their kind, but to no less than this."""
ZERO = 1e-12
"""A tensor whose gradient is so much smaller than the greatest one is rounding noise around zero."""
NOISE = 1e-6
"""What an optimizer that divides by the gradient's own size may make of such noise."""


SIGN = 2.0
"""An update whose gradient is noise may be +u in one run and -u in the other."""
SQUARED = 2.0
"""Second moments are squares of gradients, with twice their relative error."""


@dataclass(frozen=True)
class Difference:
    """The greatest absolute difference, where it is, and what was allowed."""

    max_abs: float
    allowed: float
    tensors: tuple[tuple[str, float], ...] = ()

    @property
    def there(self) -> bool:
        """More than allowed; what is not a number always is."""
        return not self.max_abs <= self.allowed


def greatest(expected: Array, got: Array, chance: Array | float = 0.0) -> float:
    """Greatest |a - b| beyond chance; inf where one of the two is not finite and they differ."""
    if expected.shape != got.shape:
        return math.inf
    same = (expected == got) | (np.isnan(expected) & np.isnan(got))
    with np.errstate(invalid="ignore"):
        apart = np.where(same, 0.0, np.maximum(np.abs(expected - got) - chance, 0.0))
    return float(np.max(np.where(np.isnan(apart), math.inf, apart), initial=0.0))


def vectors(
    expected: Vectors,
    got: Vectors,
    atol: float,
    lenient: Iterable[str] = (),
    chance: Callable[[str], Array | float] = lambda name: 0.0,
) -> Difference:
    """Two sets of tensors; one that is missing counts as zero.

    lenient   tensors whose gradient is only noise
    chance    by how much each number of a tensor may be off on top
    """
    lenient = set(lenient)
    allowed = atol * max(expected.scale, SMALL)
    worst: dict[str, float] = {}
    for name in dict.fromkeys([*expected, *got]):
        there = expected[name] if name in expected else np.zeros_like(got[name])
        apart = greatest(there, got[name] if name in got else np.zeros_like(there), chance(name))
        noisy = name in lenient or name.rpartition(".")[0] in lenient
        worst[name] = 0.0 if noisy and apart <= NOISE else apart
    ranked = sorted(worst.items(), key=lambda each: -each[1])
    return Difference(ranked[0][1] if ranked else 0.0, allowed, tuple(ranked))


def parameters(
    reference: Trace,
    got: Trace,
    atol: float,
    lenient: Iterable[str],
    *,
    same_gradient: bool,
    exact: float | None = None,
) -> Difference:
    """Parameters after the step.

    An adaptive optimizer divides by the gradient's own size: where a number of the gradient is little more than its
    rounding error δ, the update u is as uncertain as the gradient, by u·δ/|g|. With other gradients nothing is excused.

    exact   relative tolerance of the parameters as they were before; `atol` is then that of the update
    """

    def chance(name: str) -> Array | float:
        known = (reference.vectors["initial"], reference.parameters, reference.clipped_gradient, got.clipped_gradient)
        if not all(name in each for each in known):
            return 0.0
        before, after, expected, found = (each[name] for each in known)
        uncertain = np.abs(found - expected) / np.maximum(np.abs(expected), np.finfo(float).tiny)
        return SIGN * float(np.max(np.abs(after - before), initial=0.0)) * np.minimum(uncertain, 1.0)

    comparable = same_gradient and all("clipped_gradient" in trace.vectors for trace in (reference, got))
    expected = reference.parameters
    allowed = atol
    if exact is not None and exact < atol and "initial" in reference.vectors:
        before = reference.vectors["initial"]
        moved = max((greatest(before[name], expected[name]) for name in expected if name in before), default=0.0)
        allowed = exact + atol * moved / max(expected.scale, SMALL)
    args = (expected, got.parameters, allowed, lenient)
    return vectors(*args, chance) if comparable else vectors(*args)


def one_by_one(expected: Vectors, got: Vectors, atol: float) -> Difference | None:
    """Tensors of the same name and shape, each relative to its own greatest number; None if there are none.

    The worst one's difference; `tensors` are those that differ, the worst first.
    """
    worst: list[tuple[float, str, float, float]] = []
    for name in expected:
        if name in got and expected.shape(name) == got.shape(name):
            apart, allowed = greatest(expected[name], got[name]), atol * max(_scale(expected[name]), SMALL)
            worst.append((apart / allowed if allowed else math.inf * bool(apart), name, apart, allowed))
    if not worst:
        return None
    worst.sort(key=lambda each: (-each[0], each[1]))
    _, _, apart, allowed = worst[0]
    return Difference(apart, allowed, tuple((name, apart) for ratio, name, apart, _ in worst if ratio > 1))


def _scale(values: Array) -> float:
    finite = np.abs(values[np.isfinite(values)])
    return float(np.max(finite, initial=0.0))


SETTING = 1e-12
"""Relative difference of two learning rates that are the same."""


def settings(expected: Mapping[str, float], got: Mapping[str, float]) -> list[tuple[str, float, float]]:
    """Numbers that rule the next update, of those that both have: name, expected, got where they differ."""
    return [
        (name, value, got[name])
        for name, value in expected.items()
        if name in got and not math.isclose(value, got[name], rel_tol=SETTING, abs_tol=0.0) and value == value
    ]


def worse(first: Difference | None, second: Difference | None) -> Difference | None:
    """The one that differs more, relative to what is allowed."""
    if first is None or second is None:
        return first or second
    return max(first, second, key=lambda each: (each.there, each.max_abs / (each.allowed or math.inf)))


def noise(reference: Vectors) -> list[str]:
    """Tensors whose reference gradient is zero but for rounding."""
    scale = reference.scale
    return [name for name in reference if reference.max_abs(name) <= ZERO * scale]


def states(expected: Vectors, got: Vectors, atol: float, lenient: Sequence[str]) -> Difference:
    """Optimizer states, kind by kind: second moments are much smaller than steps."""
    worst: list[tuple[str, float, float]] = []
    kinds = {name.rpartition(".")[2] for name in (*expected, *got)}
    for kind in sorted(kinds):
        parts = [
            Vectors(each.path, {name: at for name, at in each.places.items() if name.rpartition(".")[2] == kind})
            for each in (expected, got)
        ]
        found = vectors(parts[0], parts[1], SQUARED * atol, lenient)
        if found.tensors:
            worst.append((found.tensors[0][0], found.max_abs, found.allowed))
    if not worst:
        return Difference(0.0, atol)
    name, apart, allowed = max(worst, key=lambda each: each[1] / each[2])
    return Difference(apart, allowed, ((name, apart),))


def replicas(ranks: Sequence[Trace], kind: str, atol: float) -> Difference:
    """The other ranks against rank 0."""
    none = Difference(0.0, atol)
    if any(kind not in trace.vectors for trace in ranks):
        return none if all(kind not in trace.vectors for trace in ranks) else Difference(math.inf, atol)
    first = ranks[0].vectors[kind]
    found = [vectors(first, trace.vectors[kind], atol) for trace in ranks[1:]]
    return max(found, key=lambda each: each.max_abs, default=none)


@dataclass(frozen=True)
class Consumption:
    """What the models were given, in the reference and on all ranks. Numbers of samples; `times` of the usual count."""

    missing: tuple[int, ...]
    repeated: tuple[tuple[int, float], ...]
    times: float

    @property
    def difference(self) -> float:
        """The greatest excess or lack of one sample."""
        return max([1.0] * bool(self.missing) + [abs(count - 1) for _, count in self.repeated], default=0.0)


def consumption(
    reference: Trace, ranks: Sequence[Trace], numbers: dict[str, dict[str, list[int]]]
) -> Consumption | None:
    """Compare the rows that outermost forwards got; None where there is no common field to compare."""
    expected, got = reference.consumed, _merged([trace.consumed for trace in ranks])
    found: Consumption | None = None
    common = [field for field in expected if field in got]
    distinct = max((len(expected[field]) for field in common), default=0)
    for field in common:
        if len(expected[field]) < distinct:  # rows that several samples share say less about each of them
            continue
        ratios = {digest: got[field][digest] / count for digest, count in expected[field].items()}
        frequent = Counter(ratio for ratio in ratios.values() if ratio)
        times = min(frequent, key=lambda ratio: (-frequent[ratio], ratio), default=1.0)
        samples = {number: ratio / times for digest, ratio in ratios.items() for number in numbers[field][digest]}
        missing = tuple(sorted(number for number, ratio in samples.items() if ratio == 0))
        repeated = tuple(sorted((number, ratio) for number, ratio in samples.items() if ratio not in (0, 1)))
        here = Consumption(missing, repeated, times)
        if found is None or here.difference > found.difference:
            found = here
    return found


def _merged(counters: Iterable[Mapping[str, Counter[str]]]) -> dict[str, Counter[str]]:
    """Counts of all ranks together."""
    total: dict[str, Counter[str]] = {}
    for each in counters:
        for name, counts in each.items():
            total.setdefault(name, Counter()).update(counts)
    return total


def loss(reference: Trace, ranks: Sequence[Trace], atol: float) -> tuple[Difference, float, float] | None:
    """Mean over the ranks of the losses that were differentiated, or their sum if that fits; None where not comparable.

    A cached gradient (a backward that follows no forward) differentiates something else than the loss.
    """
    if not reference.losses or any(_surrogate(trace) for trace in (reference, *ranks)):
        return None
    expected, sums = sum(reference.losses), [sum(trace.losses) for trace in ranks]
    allowed = _allowed(atol, [expected])
    mean = sum(sums) / len(sums)
    best = min((mean, sum(sums)), key=lambda value: abs(value - expected) > allowed) if math.isfinite(mean) else mean
    return Difference(greatest(np.array(expected), np.array(best)), allowed), expected, best


def _allowed(atol: float, values: Sequence[float]) -> float:
    """What numbers like these may be off by; those that are not finite say nothing about it."""
    return atol * max([abs(value) for value in values if math.isfinite(value)] + [SMALL])


def _surrogate(trace: Trace) -> bool:
    """Backwards without a forward before them: not the loss itself was differentiated. No forward at all: unknown."""
    kinds = [event for event in trace.events if event.startswith(("forward", "backward"))]
    backwards = kinds.count("backward")
    if backwards == len(kinds):
        return False
    return len(trace.losses) != backwards or any(
        event == "backward" and (i == 0 or kinds[i - 1] == "backward") for i, event in enumerate(kinds)
    )


def norms(expected: Sequence[float], found: Sequence[Sequence[float]], atol: float) -> Difference | None:
    """Norms that were computed, in order, on every rank; None where there are none to compare."""
    if not expected or not any(found):
        return None
    allowed = _allowed(atol, expected)
    return Difference(max(greatest(np.array(expected), np.array(each)) for each in found), allowed)
