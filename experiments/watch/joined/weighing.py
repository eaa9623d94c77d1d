"""From the losses of a backward to its tokens: how many there are, and what each of them weighs.

A cell may hold several losses. Those of one kind are one term where a token of each weighs alike, or where they enter
the sum with one factor (a loss in chunks); else each is a term of its own. What is judged is the term with the most
tokens.

Symbols of a cell: `local` ∂L/∂ℓ_i; `fair` what the objective itself gives token i beside the others (its class weight,
1 without); `row` its sequence or sample. Shapes [n], n the tokens that count.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from samestep.experiments.watch.joined.joining import Joined
from samestep.experiments.watch.records import Array, Cell, Loss

ALIKE = 1e-5
"""Relative difference up to which two weights are the same: what float32 leaves of a division or two."""


@dataclass(frozen=True)
class Tokens:
    """The tokens of one cell in one term. `source`: how it is known which entries count, targets or nonzero.

    `rows`: None where it is not known which tokens belong together. `silent`: entries that count and weigh nothing.
    """

    kind: str
    line: str | None
    local: Array
    fair: Array
    rows: NDArray[np.int64] | None
    source: str
    silent: int

    @property
    def n(self) -> int:
        """How many."""
        return len(self.local)

    @property
    def mass(self) -> float:
        """Σ fair: the count where all are alike."""
        return float(self.fair.sum())


@dataclass(frozen=True)
class OtherTerm:
    """A scalar in the sum that no known loss is below of: its factor in L in every cell, None where it is not in it."""

    name: str
    line: str | None
    factors: tuple[tuple[float | None, ...], ...]


@dataclass(frozen=True)
class Weighed:
    """Tokens of every cell, [rank][backward], term by term, the one with the most tokens first; and what has none."""

    terms: tuple[tuple[tuple[Tokens, ...], ...], ...]
    others: tuple[OtherTerm, ...]


def weigh(joined: Joined) -> Weighed:
    """Sort the losses of all cells into terms."""
    grouped = [[_terms(cell) for cell in rank] for rank in joined.cells]
    keys = list(dict.fromkeys(key for rank in grouped for cell in rank for key in cell))
    terms = [
        tuple(tuple(_tokens(cell.get(key, []), joined.cells[r][k]) for k, cell in enumerate(rank)) for r, rank in
              enumerate(grouped))
        for key in keys
    ]  # fmt: skip
    terms.sort(key=lambda term: -sum(tokens.n for rank in term for tokens in rank))
    return Weighed(tuple(terms), tuple(_others(joined)))


Key = tuple[str, int | None, int]


def _terms(cell: Cell) -> dict[Key, list[Loss]]:
    """Losses by kind and number of classes, and within those by how much a token weighs, or where they were called."""
    found: dict[Key, list[Loss]] = {}
    factors = {number: term.factor for term in cell.terms for number in term.losses}
    kinds: dict[tuple[str, int | None], list[tuple[float | None, Loss, int]]] = {}
    for number, loss in enumerate(cell.losses):
        kind = _family(loss.kind), loss.classes
        factor = factors.get(number)
        known = kinds.setdefault(kind, [])
        same = next((i for f, other, i in known if _one_term(loss, factor, other, f)), None)
        if same is None:
            same = len({i for _, _, i in known})
        known.append((factor, loss, same))
        found.setdefault((*kind, same), []).append(loss)
    return found


def _one_term(loss: Loss, factor: float | None, other: Loss, its: float | None) -> bool:
    """With factors in the sum that are not known, losses that one line of the script has made belong together."""
    one, two = _typical(loss), _typical(other)
    if _near(factor, its) or _near(one, two) or 0.0 in (one, two):
        return True
    return factor is None and its is None and loss.line is not None and loss.line == other.line


def _family(kind: str) -> str:
    return "cross_entropy" if kind in ("nll_loss", "log_softmax", "gather") else kind


def _near(one: float | None, other: float | None) -> bool:
    return one is not None and other is not None and abs(one - other) <= 1e-4 * max(abs(one), abs(other))


def _typical(loss: Loss) -> float:
    used = np.empty(0) if loss.weights is None else loss.weights[loss.weights != 0]
    return float(np.median(used)) if len(used) else 0.0


def _tokens(losses: Sequence[Loss], cell: Cell) -> Tokens:
    """The tokens of one term in one cell, put one after the other."""
    parts = [_part(loss, cell.scale or 1.0) for loss in losses]
    if not parts:
        return Tokens("", None, np.empty(0), np.empty(0), np.empty(0, np.int64), "targets", 0)
    rows: list[NDArray[np.int64]] = []
    first = 0
    for part, loss in zip(parts, losses, strict=True):
        own = part.rows if part.rows is not None else np.zeros(part.n, np.int64) if len(losses) > 1 else None
        if own is None:
            rows = []
            break
        rows.append(own + first)
        first = int(rows[-1].max(initial=first - 1)) + 1 if loss.shape and len(loss.shape) > 1 else first + 1
    return Tokens(
        losses[0].kind,
        losses[0].line,
        np.concatenate([part.local for part in parts]),
        np.concatenate([part.fair for part in parts]),
        np.concatenate(rows) if rows else None,
        "nonzero" if any(part.source == "nonzero" for part in parts) else "targets",
        sum(part.silent for part in parts),
    )


def _part(loss: Loss, scale: float) -> Tokens:
    size = len(loss.weights) if loss.weights is not None else len(loss.valid) if loss.valid is not None else 0
    weights = np.zeros(size) if loss.weights is None else loss.weights / scale
    counts, source = _counting(loss, weights)
    local = weights[counts]
    fair = np.ones(len(local)) if loss.importance is None else _mixed(local, loss.importance[counts], loss.smoothed)
    return Tokens(loss.kind, loss.line, local, fair, _rows(loss, counts), source, int(np.sum(local == 0)))


def _counting(loss: Loss, weights: Array) -> tuple[NDArray[np.bool_], str]:
    """Which entries are tokens. A loss that is reduced by hand may be masked by hand: then those that have a weight."""
    if loss.reduction == "marked" or (loss.valid is not None and loss.reduction in ("mean", "sum")):
        return (loss.valid if loss.valid is not None else np.ones(len(weights), bool)), "targets"
    if loss.kind == "marked" or (
        loss.reduction in ("mean", "sum") and loss.valid is None and loss.kind != "log_softmax"
    ):
        return np.ones(len(weights), bool), "targets"
    return (weights != 0) & (True if loss.valid is None else loss.valid), "nonzero"


def _mixed(local: Array, importance: Array, mean: float | None) -> Array:
    """Class weights as the objective has them: with smoothed labels a part of each goes to all classes alike."""
    if mean is None or len(local) < 2:
        return importance
    basis = np.column_stack([importance, np.full(len(importance), mean)])
    (own, all_alike), *_ = np.linalg.lstsq(basis, local, rcond=None)
    total = own + all_alike
    return importance if total == 0 else (own * importance + all_alike * mean) / total


def _rows(loss: Loss, counts: NDArray[np.bool_]) -> NDArray[np.int64] | None:
    """The first axis of what was flattened."""
    if loss.shape is None or len(loss.shape) < 2 or int(np.prod(loss.shape)) != len(counts):
        return None
    return np.flatnonzero(counts) // int(np.prod(loss.shape[1:]))


def _others(joined: Joined) -> list[OtherTerm]:
    """Terms without tokens, told apart by what made them, where, and by their order."""
    found = [[_numbered(cell) for cell in rank] for rank in joined.cells]
    keys = dict.fromkeys(key for rank in found for cell in rank for key in cell)
    return [OtherTerm(key[0], key[1], tuple(tuple(cell.get(key) for cell in rank) for rank in found)) for key in keys]


def _numbered(cell: Cell) -> dict[tuple[str, str | None, int], float]:
    factors: dict[tuple[str, str | None, int], float] = {}
    for term in cell.terms:
        if not term.losses and term.factor is not None:
            number = sum((name, line) == (term.name, term.line) for name, line, _ in factors)
            factors[term.name, term.line, number] = term.factor / (cell.scale or 1.0)
    return factors


def spread(values: Array) -> float:
    """(max − min) ÷ max |value|, 0 for less than two."""
    largest = float(np.abs(values).max(initial=0.0))
    return float(values.max() - values.min()) / largest if len(values) > 1 and largest else 0.0


def rule_within(tokens: Tokens) -> str:
    """How weights differ within a cell: uniform, class_weights, sequence_mean, signed or varying; empty without any."""
    if tokens.n == 0:
        return "empty"
    if not np.all(np.isfinite(tokens.local)):
        return "varying"
    used = tokens.fair > 0
    even = tokens.local[used] / tokens.fair[used]
    if spread(even) <= ALIKE:
        return "uniform" if spread(tokens.fair) <= ALIKE else "class_weights"
    if tokens.local.min() < 0 < tokens.local.max():
        return "signed"
    if tokens.rows is not None:
        numbers, rows = np.unique(tokens.rows, return_inverse=True)
        mass = np.bincount(rows, tokens.fair)
        totals = np.bincount(rows, tokens.local)
        if (
            len(numbers) > 1
            and spread(totals.astype(np.float64)) <= ALIKE
            and spread(tokens.local / tokens.fair * mass[rows]) <= ALIKE
        ):
            return "sequence_mean"
    return "varying"
