"""Pipelines and experts: every rank holds a part of the model and steps only that.

It is told by what was seen: ranks send to each other, and each parameter has a gradient on some ranks and none (None)
on the others. Then a parameter is compared on a rank that stepped it; other ranks' copies are not in use.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from samestep.experiments.audit.trace import Trace
from samestep.experiments.audit.vectors import Array, Vectors

SENT = ("point-to-point", "collective all_to_all")
MERGED = ("gradient", "clipped_gradient", "computed", "parameters")


def is_staged(reference: Trace, ranks: Sequence[Trace]) -> bool:
    """Whether each parameter that the reference steps is stepped by some ranks, and no rank steps all of them."""
    if len(ranks) < 2 or "clipped_gradient" not in reference.vectors:
        return False
    if not all(any(event.startswith(SENT) for event in trace.events) for trace in ranks):
        return False
    held = [set(trace.vectors.get("clipped_gradient", ())) for trace in ranks]
    wanted = set(reference.clipped_gradient)
    return wanted <= set.union(*held) and all(wanted - mine for mine in held)


def whole(ranks: Sequence[Trace], folder: Path) -> list[Trace]:
    """The ranks with one model: every parameter as the first rank that stepped it has it."""
    holder = {name: trace for trace in reversed(ranks) for name in trace.vectors["clipped_gradient"]}
    kinds = [kind for kind in MERGED if all(kind in trace.vectors for trace in ranks)]
    merged = {}
    for kind in kinds:
        names = dict.fromkeys(name for trace in ranks for name in trace.vectors[kind])
        taken: dict[str, Array] = {}
        for name in names:
            source = holder.get(name, ranks[0]).vectors[kind]
            if name in source:
                taken[name] = source[name]
        merged[kind] = Vectors.write(folder / f"whole_{kind}.f64", taken)
    return [replace(trace, vectors={**trace.vectors, **merged}) for trace in ranks]
