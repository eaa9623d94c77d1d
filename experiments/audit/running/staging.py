"""Pipelines and experts: every rank holds a part of the model and steps only that.

Optimizers that are shared out: every rank holds the whole model, steps its own part of it, and hands the result on.

A pipeline is told by what was seen: ranks send to each other, and each parameter has a gradient on some ranks and
none (None) on the others. Then a parameter is compared on a rank that stepped it; other ranks' copies are not in use.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from samestep.experiments.audit.running.trace import Trace
from samestep.experiments.audit.running.vectors import Array, Vectors

SENT = ("point-to-point", "collective all_to_all")
GRADIENTS = ("gradient", "clipped_gradient", "computed")
MERGED = (*GRADIENTS, "parameters")


def is_staged(reference: Trace, ranks: Sequence[Trace]) -> bool:
    """Whether each parameter that the reference steps is stepped by some ranks, and no rank steps all of them."""
    if len(ranks) < 2 or "clipped_gradient" not in reference.vectors:
        return False
    if not all(any(event.startswith(SENT) for event in trace.events) for trace in ranks):
        return False
    held = [set(trace.vectors.get("clipped_gradient", ())) for trace in ranks]
    wanted = set(reference.clipped_gradient)
    return wanted <= set.union(*held) and all(wanted - mine for mine in held)


def shares_the_steps(reference: Trace, ranks: Sequence[Trace]) -> bool:
    """Whether the ranks' optimizers own different parameters, and all of them together what the reference's own."""
    owned = [set(trace.owned) for trace in ranks]
    if any("clipped_gradient" not in trace.vectors for trace in ranks) or not all(owned):
        return False
    return any(each != owned[0] for each in owned) and set(reference.owned) <= set.union(*owned)


def whole(ranks: Sequence[Trace], folder: Path, merge: Sequence[str] = MERGED) -> list[Trace]:
    """The ranks with one model: every parameter as the first rank that stepped it has it."""
    holder = {name: trace for trace in reversed(ranks) for name in trace.vectors["clipped_gradient"]}
    kinds = [kind for kind in merge if all(kind in trace.vectors for trace in ranks)]
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
