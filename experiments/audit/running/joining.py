"""Tensors of which each rank holds a part of its own making: flat shards, rows of a moment, columns of a weight.

They are told by their shapes, which differ from the reference's, and put together along the axis that fits. A tail of
zeros is padding. Parts in another order, such as buckets, count as the reference's where they are the same numbers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from samestep.experiments.audit.running.trace import Trace
from samestep.experiments.audit.running.vectors import Array, Vectors

KINDS = ("gradient", "clipped_gradient", "computed", "stepped", "parameters", "optimizer_state")
ALIKE = 1e-9
"""Relative difference of numbers that are the same in another order."""


@dataclass(frozen=True)
class Joined:
    """The runs with whole tensors; `pieces`: those that could not be put together, and are taken out of all runs."""

    reference: Trace
    ranks: list[Trace]
    pieces: tuple[str, ...] = ()


def joined(reference: Trace, ranks: Sequence[Trace], folder: Path) -> Joined:
    """The same runs, unless some tensor has another shape on a rank than in the reference."""
    pieces: dict[str, None] = {}
    expected = dict(reference.vectors)
    found = [dict(trace.vectors) for trace in ranks]
    changed = False
    for kind in KINDS:
        if kind not in expected or not all(kind in each for each in found):
            continue
        known, parts = expected[kind], [each[kind] for each in found]
        odd = [name for name in known if all(name in part for part in parts) and _odd(name, known, parts)]
        if not odd:
            continue
        changed = True
        wholes = {name: _whole(known[name], [part[name] for part in parts]) for name in odd}
        lost = [name for name, whole in wholes.items() if whole is None]
        pieces |= dict.fromkeys(lost)
        expected[kind] = known.only(name for name in known if name not in lost)
        for rank, part in enumerate(parts):
            tensors = {name: part[name] for name in part if name not in wholes}
            tensors |= {name: whole for name, whole in wholes.items() if whole is not None}
            found[rank][kind] = Vectors.write(folder / f"joined{rank}_{kind}.f64", tensors)
    if not changed:
        return Joined(reference, list(ranks))
    # what backwards added is in the shape of the parts, and no sum of it is the whole gradient
    whole_ranks = [replace(trace, vectors=each, parts=0) for trace, each in zip(ranks, found, strict=True)]
    return Joined(replace(reference, vectors=expected), whole_ranks, tuple(pieces))


def _odd(name: str, expected: Vectors, parts: Sequence[Vectors]) -> bool:
    return any(part.shape(name) != expected.shape(name) for part in parts)


def _whole(expected: Array, parts: Sequence[Array]) -> Array | None:
    """The parts side by side, in the reference's shape; None where they do not fit."""
    for axis in range(expected.ndim):
        if any(part.ndim != expected.ndim for part in parts):
            return None
        around = [np.delete(part.shape, axis).tolist() for part in parts]
        if any(each != np.delete(expected.shape, axis).tolist() for each in around):
            continue
        together = np.concatenate(parts, axis)
        kept, tail = np.split(together, [expected.shape[axis]], axis)
        if kept.shape == expected.shape and not np.any(tail):
            return expected.copy() if _in_another_order(expected, kept) else kept
    return None


def _in_another_order(expected: Array, found: Array) -> bool:
    there, here = np.sort(expected, axis=None), np.sort(found, axis=None)
    return bool(np.max(np.abs(there - here), initial=0.0) <= ALIKE * np.max(np.abs(there), initial=0.0))
