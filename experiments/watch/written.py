"""From what the taps hold on a device to what a rank writes down: everything of a step is copied at once."""

import hashlib
import traceback
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from samestep.experiments.taps import sites
from samestep.experiments.taps.backwards import Backward
from samestep.experiments.taps.placement import Part
from samestep.experiments.taps.terms import Term as SeenTerm
from samestep.experiments.taps.tokens import Source
from samestep.experiments.watch.records import Array, Cell, Gradient, Loss, Term


class Candidate(Protocol):
    """A backward and the loss scale that it was made with."""

    seen: Backward
    scale: Tensor | None


class Copies:
    """Tensors on their way to the host: `add` notes one, `bring` copies all of a device together, `of` gives it."""

    def __init__(self) -> None:
        self._tensors: list[Tensor] = []
        self._numbers: dict[int, int] = {}
        self._there: list[Array] = []

    def add(self, tensor: Tensor | None) -> None:
        if tensor is not None and id(tensor) not in self._numbers:
            self._numbers[id(tensor)] = len(self._tensors)
            self._tensors.append(tensor)

    def bring(self) -> None:
        with torch.no_grad():
            self._there = [np.empty(0)] * len(self._tensors)
            for device in {tensor.device for tensor in self._tensors}:
                these = [i for i, tensor in enumerate(self._tensors) if tensor.device == device]
                flat = torch.cat([self._tensors[i].detach().reshape(-1).double() for i in these]).cpu().numpy()
                ends = np.cumsum([self._tensors[i].numel() for i in these])
                for i, part in zip(these, np.split(flat, ends[:-1]), strict=True):
                    self._there[i] = part

    def of(self, tensor: Tensor) -> Array:
        return self._there[self._numbers[id(tensor)]]

    def maybe(self, tensor: Tensor | None) -> Array | None:
        return None if tensor is None else self.of(tensor)


def on_the_host(
    candidates: Sequence[Candidate],
    lost: int,
    tags: set[int],
    parts: dict[int, Part],
    before: dict[int, Part],
    name: Callable[[int], str],
    scale: Tensor | None,
) -> tuple[tuple[Cell, ...], dict[str, Gradient]]:
    """Cells, the first `lost` of them discarded, and gradients. `scale`: what the ones before a clip still carry."""
    copies = Copies()
    for each in _tensors(candidates, tags, parts, before, scale):
        copies.add(each)
    copies.bring()
    divisor = 1.0 if scale is None else float(copies.of(scale)[0])
    gradients = {}
    for tag, part in parts.items():
        stepped = copies.of(part.sketch)
        goal = copies.of(before[tag].sketch) / divisor if tag in before else stepped
        gradients[name(tag)] = Gradient(part.copy, goal, stepped)
    cells = tuple(_cell(each, tags, copies, name, i < lost) for i, each in enumerate(candidates))
    return cells, gradients


def _tensors(
    candidates: Iterable[Candidate], tags: set[int], parts: dict[int, Part], before: dict[int, Part],
    scale: Tensor | None,
) -> Iterable[Tensor | None]:  # fmt: skip
    yield scale
    yield from (part.sketch for part in (*parts.values(), *before.values()))
    for candidate in candidates:
        yield candidate.scale
        yield from (sketch for tag, sketch in candidate.seen.contributions.items() if tag in tags)
        yield from (term.factor for term in candidate.seen.terms)
        for source in candidate.seen.sources:
            yield from (
                source.weights, source.valid, source.importance, source.target, source.smoothed_importance,
            )  # fmt: skip


def _cell(candidate: Candidate, tags: set[int], copies: Copies, name: Callable[[int], str], discarded: bool) -> Cell:
    seen = candidate.seen
    return Cell(
        number=seen.number,
        line=seen.line,
        losses=tuple(_loss(source, copies) for source in seen.sources),
        terms=tuple(_term(term, copies) for term in seen.terms),
        contribution={name(tag): copies.of(sketch) for tag, sketch in seen.contributions.items() if tag in tags},
        types=tuple(sorted(seen.types)),
        ends=tuple(seen.ends),
        scale=None if candidate.scale is None else float(copies.of(candidate.scale)[0]),
        discarded=discarded,
    )


def _loss(source: Source, copies: Copies) -> Loss:
    valid = copies.maybe(source.valid)
    target, smoothed = copies.maybe(source.target), copies.maybe(source.smoothed_importance)
    return Loss(
        source.kind, source.line, source.reduction, source.shape, source.classes, copies.maybe(source.weights),
        None if valid is None else valid.astype(bool), copies.maybe(source.importance),
        None if smoothed is None else float(smoothed[0]),
        "" if target is None else hashlib.blake2b(target.tobytes(), digest_size=8).hexdigest(),
        source.product and target is not None and _counts_up(target),
        int(source.node._sequence_nr()),
    )  # fmt: skip


def _counts_up(target: Array) -> bool:
    """0, 1, 2, …, or that from another number on: the label of a row is its own position."""
    return len(target) > 1 and bool((np.diff(target) == 1).all())


def _term(term: SeenTerm, copies: Copies) -> Term:
    factor = copies.maybe(term.factor)
    return Term(term.name, term.line, None if factor is None else float(factor[0]), tuple(term.sources))


def optimizer_name(optimizer: Any) -> str:
    """The class, without the wrappers that frameworks put round it."""
    inner = getattr(optimizer, "optimizer", None)
    return type(optimizer).__name__ if inner is None else f"{type(optimizer).__name__}({type(inner).__name__})"


def described(error: BaseException) -> str:
    """A fault of ours in one line, with where it happened."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if sites.is_ours(frame.filename)]
    where = f" ({ours[-1].name}, line {ours[-1].lineno})" if ours else ""
    return f"{type(error).__name__}: {error}{where}"
