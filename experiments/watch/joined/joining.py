"""Put the ranks' records of one step together: columns of contributions, and the gradient that was stepped with.

Shapes: T tensors (sorted by name), W numbers in a sketch, C backwards in rank order.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from samestep.experiments.watch.records import Array, Cell, RankLog, Update

LOW_PRECISION = ("bfloat16", "float16", "float8_e4m3fn", "float8_e5m2")


@dataclass(frozen=True)
class Copies:
    """The whole copies of the gradient that exist among the ranks.

    goals        [copies, T, W] before clipping, as they should be
    stepped      [copies, T, W] what was stepped with
    difference   largest relative difference of a tensor between two copies, and the tensors that differ most
    """

    goals: Array
    stepped: Array
    difference: float
    worst: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Joined:
    """One step of one optimizer as all ranks saw it.

    cells     cells[r] of every rank, two backwards of one forward merged; `discarded` ones included
    columns   [T, W, C] contributions of the cells that were not discarded, divided by their loss scale
    places    (rank, position in cells[r]) of every column
    """

    updates: Sequence[Update]
    names: tuple[str, ...]
    cells: tuple[tuple[Cell, ...], ...]
    columns: Array
    places: tuple[tuple[int, int], ...]
    copies: Copies | None

    @property
    def first(self) -> Update:
        """Rank 0's record: what is the same on all."""
        return self.updates[0]

    @property
    def low_precision(self) -> bool:
        """Some gradient was computed with fewer than 24 bits."""
        return any(kind in LOW_PRECISION for rank in self.cells for cell in rank for kind in cell.types)


def joined(logs: Mapping[int, RankLog]) -> dict[tuple[int, int], Joined]:
    """Every step that all ranks have written, by (optimizer, number) in the order of rank 0's steps."""
    by_rank = [{(each.optimizer, each.number): each for each in log.updates} for log in logs.values()]
    keys = [key for key in by_rank[0] if all(key in rank for rank in by_rank)] if by_rank else []
    return {key: _join([rank[key] for rank in by_rank]) for key in keys}


def _join(updates: Sequence[Update]) -> Joined:
    cells = tuple(_merged(update.cells) for update in updates)
    names = tuple(
        sorted(
            {name for update in updates for name in update.gradients}
            | {name for rank in cells for cell in rank for name in cell.contribution}
        )
    )
    places = tuple((r, k) for r, rank in enumerate(cells) for k, cell in enumerate(rank) if not cell.discarded)
    width = _width(updates)
    columns = np.zeros((len(names), width, len(places)))
    for j, (r, k) in enumerate(places):
        cell = cells[r][k]
        for i, name in enumerate(names):
            if name in cell.contribution:
                columns[i, :, j] = cell.contribution[name] / (cell.scale or 1.0)
    return Joined(updates, names, cells, columns, places, _copies(updates, names, width))


def _width(updates: Sequence[Update]) -> int:
    sizes = [len(sketch) for update in updates for cell in update.cells for sketch in cell.contribution.values()]
    sizes += [len(gradient.goal) for update in updates for gradient in update.gradients.values()]
    return sizes[0] if sizes else 1


def _merged(cells: Sequence[Cell]) -> tuple[Cell, ...]:
    """Several backwards of one forward bring the same tokens: their contributions and weights add up."""
    found: list[Cell] = []
    for cell in cells:
        keys = [loss.key for loss in cell.losses]
        twin = next(
            (i for i, each in enumerate(found) if keys and keys == [loss.key for loss in each.losses]
             and each.discarded == cell.discarded and each.scale == cell.scale),
            None,
        )  # fmt: skip
        if twin is None:
            found.append(cell)
        else:
            found[twin] = _sum(found[twin], cell)
    return tuple(found)


def _sum(one: Cell, other: Cell) -> Cell:
    losses = tuple(
        replace(
            a, weights=b.weights if a.weights is None else a.weights if b.weights is None else a.weights + b.weights
        )
        for a, b in zip(one.losses, other.losses, strict=True)
    )
    names = one.contribution.keys() | other.contribution.keys()
    zero = np.zeros(1)
    contribution = {name: one.contribution.get(name, zero) + other.contribution.get(name, zero) for name in names}
    return replace(one, losses=losses, contribution=contribution)


def _copies(updates: Sequence[Update], names: Sequence[str], width: int) -> Copies | None:
    """Parts of one copy added up; copies of the same tensor compared. None where no rank has a gradient."""
    numbers: list[int | str] = []
    for rank, update in enumerate(updates):
        for gradient in update.gradients.values():
            number = f"rank{rank}" if gradient.copy is None else gradient.copy
            if number not in numbers:
                numbers.append(number)
    if not numbers:
        return None
    goals, stepped = np.zeros((2, len(numbers), len(names), width))
    there = np.zeros((len(numbers), len(names)), bool)
    index = {name: i for i, name in enumerate(names)}
    for rank, update in enumerate(updates):
        for name, gradient in update.gradients.items():
            at = numbers.index(f"rank{rank}" if gradient.copy is None else gradient.copy), index[name]
            goals[at] += gradient.goal
            stepped[at] += gradient.stepped
            there[at] = True
    whole = _filled(goals, there), _filled(stepped, there)
    differences = _differences(whole[1], there)
    worst = sorted(zip(names, differences, strict=True), key=lambda pair: -pair[1])[:5]
    return Copies(*whole, float(max(differences, default=0.0)), tuple((name, float(d)) for name, d in worst if d > 0))


def _filled(copies: Array, there: NDArray[np.bool_]) -> Array:
    """Where a copy lacks a tensor (plain ones beside sharded ones), another copy's."""
    filled = copies.copy()
    for tensor in range(copies.shape[1]):
        having = np.flatnonzero(there[:, tensor])
        if len(having):
            filled[~there[:, tensor], tensor] = copies[having[0], tensor]
    return filled


def _differences(copies: Array, there: NDArray[np.bool_]) -> list[float]:
    """Relative, for each tensor; its own size counts, but nothing below a millionth of the largest tensor's."""
    sizes = np.linalg.norm(copies, axis=2).max(axis=0)
    floor = 1e-6 * float(sizes.max(initial=0.0)) or 1.0
    found = []
    for tensor in range(copies.shape[1]):
        having = copies[there[:, tensor], tensor]
        away = max((float(np.linalg.norm(each - having[0])) for each in having[1:]), default=0.0)
        found.append(away / max(float(sizes[tensor]), floor))
    return found
