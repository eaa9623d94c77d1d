"""Explain a wrong norm: a shard's own, a rank's own, or copies counted several times."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import isclose, sqrt

from samestep.experiments.audit.running.vectors import Vectors

CLOSE = 1e-9
FEW = 12
"""Tensors up to which every subset is tried as the one that was counted several times."""


@dataclass(frozen=True)
class NormFault:
    """`cause`, with the tensors that were counted `times` over for `copies_counted`."""

    cause: str
    times: int = 1
    tensors: tuple[str, ...] = ()


def explain(expected: float, found: Sequence[float], gradient: Vectors, sharded: bool) -> NormFault | None:
    """What norms of the ranks instead of the expected one say; None if nothing known.

    gradient  of the reference, before the clip
    sharded   whether each rank holds only a part of the gradient, or has a local norm for another reason
    """
    if any(value != value for value in found):
        return None
    together = sqrt(sum(value**2 for value in found))
    if isclose(together, expected, rel_tol=CLOSE) and len(found) > 1:
        return NormFault("local_norm")
    if not all(isclose(value, found[0], rel_tol=CLOSE) for value in found):
        return NormFault("local_norm" if sharded else "per_rank_clip")
    return _copies(expected, found[0], gradient, len(found))


def _copies(expected: float, found: float, gradient: Vectors, ranks: int) -> NormFault | None:
    """n² = n*² + (m - 1) Σ of the squares of the copied tensors, for m from 2 on; all tensors first."""
    squares = {name: gradient.max_abs(name) and float((gradient[name] ** 2).sum()) for name in gradient}
    excess = found**2 - expected**2
    if excess <= CLOSE * expected**2:
        return None
    for times in dict.fromkeys((ranks, 2, 3, 4)):
        for tensors in _subsets(list(squares)):
            counted = sum(squares[name] for name in tensors)
            if counted and isclose((times - 1) * counted, excess, rel_tol=CLOSE):
                return NormFault("copies_counted", times, tuple(tensors))
    return None


def _subsets(names: list[str]) -> Iterator[Sequence[str]]:
    yield names
    if len(names) <= FEW:
        for size in range(1, len(names)):
            yield from combinations(names, size)
        return
    for name in names:
        yield [name]
    parents = {name[:end] for name in names for end in range(len(name)) if name[end] == "."}
    for parent in sorted(parents):
        yield [name for name in names if name.startswith(parent + ".")]
