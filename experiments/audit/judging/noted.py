"""Compare what lies beside the update: buffers, copies of the parameters outside the model, and ctx.note values."""

from collections.abc import Iterator, Sequence

import numpy as np

from samestep.experiments.audit.judging import compare
from samestep.experiments.audit.judging.compare import Difference
from samestep.experiments.audit.running.trace import Trace
from samestep.experiments.audit.running.vectors import Array, Vectors


def beside(reference: Trace, ranks: Sequence[Trace], atol: float) -> Difference | None:
    """Buffers and copies outside the model: every rank against the reference."""
    found: Difference | None = None
    for kind in ("buffers", "outside"):
        expected = reference.vectors.get(kind)
        for trace in ranks:
            got = trace.vectors.get(kind)
            if expected is not None and got is not None:
                found = compare.worse(found, compare.one_by_one(expected, got, atol))
    return found


def not_alike(reference: Trace, ranks: Sequence[Trace]) -> list[str]:
    """Buffers and copies that there are in one run only, or in another shape."""
    names: list[str] = []
    for kind in ("buffers", "outside"):
        expected = _shapes(reference, kind)
        for trace in ranks:
            got = _shapes(trace, kind)
            names += [name for name in expected | got if expected.get(name) != got.get(name)]
    return list(dict.fromkeys(names))


def _shapes(trace: Trace, kind: str) -> dict[str, tuple[int, ...]]:
    kept = trace.vectors.get(kind)
    return {name: kept.shape(name) for name in kept} if kept is not None else {}


def notes(reference: Trace, ranks: Sequence[Trace], atol: float) -> Difference | None:
    """Every name that was noted equally often: all values, or their mean or sum, have to be the reference's."""
    worst: Difference | None = None
    for name, expected, got in _pairs(reference, ranks):
        scale = max(float(np.max(np.abs(expected), initial=0.0)), compare.SMALL)
        each = max(compare.greatest(expected, value) for value in got)
        together = min(
            compare.greatest(expected, np.mean(got, axis=0)), compare.greatest(expected, np.sum(got, axis=0))
        )
        apart = 0.0 if together <= atol * scale else each
        here = Difference(apart, atol * scale, ((name, apart),))
        worst = compare.worse(worst, here)
    return worst


def _pairs(reference: Trace, ranks: Sequence[Trace]) -> Iterator[tuple[str, Array, list[Array]]]:
    wanted = reference.vectors.get("notes")
    found: list[Vectors] = [trace.vectors["notes"] for trace in ranks if "notes" in trace.vectors]
    for name in wanted or ():
        assert wanted is not None
        if len(found) < len(ranks) or name in uncounted(reference, ranks):
            continue
        values = [each[name] for each in found]
        if all(value.shape == wanted[name].shape for value in values):
            yield name, wanted[name], values


def uncounted(reference: Trace, ranks: Sequence[Trace]) -> list[str]:
    """Names that were not noted equally often everywhere."""
    names = {name for trace in (reference, *ranks) for name in trace.repeated}
    return sorted(name for name in names if len({trace.repeated.get(name, 0) for trace in (reference, *ranks)}) > 1)
