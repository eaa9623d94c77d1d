"""One update under one plan, with everything that was recorded: what the comparison and the explanation look at."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from samestep.experiments.audit.judging import compare, complex_parts, parameters, precision, scales
from samestep.experiments.audit.running.collectives import WITHIN
from samestep.experiments.audit.running.plans import Plan
from samestep.experiments.audit.running.trace import Trace
from samestep.experiments.audit.running.variations import Cell, Variations
from samestep.experiments.audit.running.vectors import Array, Vectors, Writer

COARSEST = 1e-3
"""Relative rounding above which effective weights, and small differences of any kind, cannot be told apart."""
COARSE = 5.0
"""What a chain of roundings may add up to, in units of the tolerance."""


@dataclass(frozen=True)
class Case:
    """`numbers`: for each field, which samples have a row of that digest.

    sizes       for each field, how many numbers it has, padding included
    atol        tolerance of this update, no less than its rounding
    staged      ranks hold different parts of the model
    coarsest    the coarsest type that the reference goes through; None: none coarser than the audit's
    exact       tolerance of what is not rounded by that: parameters before they are updated
    pieces      tensors that are not compared, as ranks hold parts of them that do not make a whole
    variations  runs on one process that begin where this update begins; None where none can
    """

    plan: Plan
    reference: Trace
    ranks: Sequence[Trace]
    weights: Sequence[float]
    numbers: dict[str, dict[str, list[int]]]
    atol: float
    folder: Path
    variations: Variations | None = field(repr=False)
    sizes: dict[str, int] = field(default_factory=dict)
    staged: bool = False
    coarsest: str | None = None
    exact: float = 0.0
    pieces: tuple[str, ...] = ()

    def basis(self, cell: Cell) -> Vectors | None:
        """The gradient of these samples alone; None where it cannot be had."""
        return self.variations.gradient(cell) if self.variations and cell else None

    def in_parts(self, vectors: Vectors) -> Vectors:
        """The same, with complex tensors as their real and imaginary parts."""
        return complex_parts.in_parts(vectors, self.reference.complex, self.folder)

    def rows(self) -> tuple[parameters.ParameterRow, ...]:
        """Gradient by gradient, which is right; of a complex one, which part."""
        expected, got = self.reference.gradient, self.gradient
        assert got is not None
        allowed = self.atol * max(expected.scale, compare.SMALL)
        return parameters.table(self.in_parts(expected), self.in_parts(got), allowed, self.near)

    @property
    def drawn(self) -> list[str]:
        """Operations of the reference that draw random numbers."""
        return self.variations.probe.drawn if self.variations else []

    @cached_property
    def changed_settings(self) -> list[tuple[str, float, float]]:
        """Learning rates and other numbers for the next update, where some rank has others than the reference."""
        for trace in self.ranks:
            if changed := compare.settings(self.reference.settings, trace.settings):
                return changed
        return []

    @property
    def near(self) -> float:
        """Relative residual below which two gradients are proportional, and factors equal; more in coarser types."""
        return max(1e-9, COARSE * self.atol)

    @property
    def cast_on_ranks_only(self) -> bool:
        """The ranks go through torch.autocast, the reference does not."""
        on = [any(limit.kind == "autocast" for limit in trace.limits) for trace in (self.reference, *self.ranks)]
        return any(on[1:]) and not on[0]

    def goes_through(self, kind: str) -> bool:
        """Whether something was seen that is as coarse as this type: in the reference, a hook, or a collective.

        A hook, and autocast where the reference has none, may go through any type.
        """
        if any(trace.hooks for trace in self.ranks) or self.cast_on_ranks_only:
            return True
        seen = {kind for trace in self.ranks for kind in trace.types} | ({self.coarsest} if self.coarsest else set())
        units = precision.UNITS
        return any(units.get(each, 0.0) >= units[kind] for each in seen)

    @property
    def blurred(self) -> bool:
        """The type is too coarse to tell weights from rounding."""
        return self.near > COARSEST

    @property
    def apart(self) -> float:
        """Relative difference from which two factors, each from a fit, are not the same."""
        return max(1e-6, 100 * self.near)

    @property
    def processes(self) -> int:
        """P."""
        return len(self.ranks)

    @property
    def microbatches(self) -> int:
        """K."""
        return max(len(rank) for rank in self.plan.cells)

    @property
    def weight(self) -> float:
        """N, the weight of the whole batch."""
        return float(sum(self.weights))

    def count(self, cell: Cell) -> float:
        """n of a cell."""
        return float(sum(self.weights[i] for i in cell))

    @property
    def counts(self) -> Array:
        """n_rk of the plan, (P, K)."""
        return np.array([[self.count(cell) for cell in rank] for rank in padded(self.plan.cells)])

    def named(self, factor: float) -> scales.Factor:
        """A factor by its name in P, K, N and the loss scale."""
        relative = max(scales.RELATIVE, min(self.near, COARSEST))
        loss_scale = self.ranks[0].loss_scale
        sizes = {name: float(size) for name, size in self.sizes.items()}
        return scales.name(factor, self.processes, self.microbatches, self.weight, loss_scale, relative, sizes)

    @cached_property
    def clips_each_microbatch(self) -> bool:
        """A clip is followed by another backward before the step."""
        return any(_clips_again(trace) for trace in self.ranks)

    @cached_property
    def reduced_after_clip(self) -> bool:
        """Each rank has a gradient of its own at the clip, and all have the same one at the step."""
        apart = compare.replicas(self.ranks, "gradient", self.atol).there
        return apart and not compare.replicas(self.ranks, "clipped_gradient", self.atol).there

    @cached_property
    def reduced_within(self) -> bool:
        """The optimizer reduces what it is given, within its step: ranks give it their own, and end with one model."""
        if not all(any(event.endswith(WITHIN) for event in trace.events) for trace in self.ranks):
            return False
        apart = compare.replicas(self.ranks, "clipped_gradient", self.atol).there
        return apart and not compare.replicas(self.ranks, "parameters", self.atol).there

    @cached_property
    def gradient(self) -> Vectors | None:
        """The gradient to compare: before the clip, and over all ranks where the reduction comes after it."""
        first = self.ranks[0].vectors
        if "gradient" not in first:
            return None
        if self.clips_each_microbatch:
            return first["clipped_gradient"]
        if self.reduced_after_clip or self.reduced_within:
            return self._reduced("gradient")
        return first["gradient"]

    @cached_property
    def clipped_gradient(self) -> Vectors | None:
        """As the optimizer sees it, or as it makes it of what all ranks give it."""
        first = self.ranks[0].vectors
        if "clipped_gradient" not in first or "clipped_gradient" not in self.reference.vectors:
            return None
        return self._reduced("clipped_gradient") if self.reduced_within else first["clipped_gradient"]

    def _reduced(self, kind: str) -> Vectors:
        """Mean over the ranks, or their sum if that is the reference."""
        parts = [trace.vectors[kind] for trace in self.ranks]
        names = list(dict.fromkeys(name for part in parts for name in part))
        total = {name: np.sum([part[name] for part in parts if name in part], axis=0) for name in names}
        mean = Vectors.write(self.folder / f"mean_{kind}.f64", {name: total[name] / len(parts) for name in names})
        whole = Vectors.write(self.folder / f"sum_{kind}.f64", total)
        expected = self.reference.vectors[kind]
        return min((mean, whole), key=lambda each: compare.vectors(expected, each, self.atol).max_abs)

    @cached_property
    def norms(self) -> list[list[float]]:
        """Norms of each rank; where every microbatch is clipped, the norm of what is left."""
        if self.clips_each_microbatch and self.gradient is not None:
            return [[self.gradient.norm] for _ in self.ranks]
        return [trace.norms for trace in self.ranks]

    @cached_property
    def optimizer_state(self) -> Vectors:
        """Of rank 0, and what only other ranks hold: sharded optimizers keep each moment on one rank."""
        states = [trace.optimizer_state for trace in reversed(self.ranks)]
        holders = {name: state for state in states for name in state}
        if len(holders) == len(states[-1]):
            return states[-1]
        place = self.folder / "optimizer_state.f64"
        with Writer(place) as writer:
            for name, state in holders.items():
                writer.add(name, state[name])
        return Vectors.read(place)

    @cached_property
    def consumption(self) -> compare.Consumption | None:
        """Which samples the models were given."""
        if any(trace.unrecognised for trace in (self.reference, *self.ranks)):
            return None
        return compare.consumption(self.reference, self.ranks, self.numbers)

    @cached_property
    def cells(self) -> tuple[tuple[Cell, ...], ...]:
        """Samples of every backward on every rank as they were met; the plan's where that cannot be told."""
        met = [trace.calls for trace in self.ranks]
        if all(calls and all(each is not None for each in calls) for calls in met):
            return tuple(tuple(tuple(each or ()) for each in calls) for calls in met)
        return self.plan.cells


def padded(cells: Sequence[Sequence[Cell]]) -> list[list[Cell]]:
    """As many cells on every rank: empty ones where there are none."""
    most = max(len(rank) for rank in cells)
    return [[*rank, *[()] * (most - len(rank))] for rank in cells]


def _clips_again(trace: Trace) -> bool:
    """A clip that may change something (infinity is a way to ask for the norm) comes before another backward."""
    by_hand = any(event == "note norm" for event in trace.events)
    limits = any(clip.limit is None or clip.limit < float("inf") for clip in trace.earlier_clips)
    return (by_hand or limits) and _clip_before_backward(trace.events)


def _clip_before_backward(events: Sequence[str]) -> bool:
    """A clip is followed by another backward before the step."""
    clipped = False
    for event in events:
        if event == "step":
            clipped = False
        elif event == "backward" and clipped:
            return True
        elif event in ("clip", "note norm"):
            clipped = True
    return False
