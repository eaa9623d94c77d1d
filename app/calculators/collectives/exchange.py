"""The mathematics of collectives: what every rank gets, and what comes back to it through each of five backwards.

A `Collective` holds the inputs of all ranks, (P, n), and the gradients that arrive at their outputs, (P, m); its
outputs are (P, m), the gradients of the inputs (P, n). Words, symbols and the five ways: see `collectives`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from samestep.app.calculators.collectives.traffic import Op
from samestep.app.contract.arrays import Floats

ReduceOp = Literal["sum", "avg", "max", "min", "product"]
WayName = Literal["adjoint", "functional", "nn_functional", "plain", "local"]
WayReason = Literal["no_gradient", "raises"]

REDUCING: tuple[Op, ...] = ("all_reduce", "reduce_scatter")

_REDUCE: dict[ReduceOp, Any] = {"sum": np.sum, "max": np.max, "min": np.min, "product": np.prod}


@dataclass(frozen=True, eq=False)
class Collective:
    """One collective on P ranks: inputs (P, n), gradients of the outputs (P, m)."""

    op: Op
    reduce: ReduceOp
    root: int
    values: Floats
    grads: Floats

    @property
    def ranks(self) -> int:
        return len(self.values)

    def reduced(self) -> Floats:
        """x_1 ⊕ … ⊕ x_P, (n,)."""
        if self.reduce == "avg":
            mean: Floats = self.values.sum(axis=0) / self.ranks
            return mean
        reduced: Floats = _REDUCE[self.reduce](self.values, axis=0)
        return reduced

    def outputs(self) -> Floats:
        """y, (P, m)."""
        if self.op == "all_reduce":
            return np.tile(self.reduced(), (self.ranks, 1))
        if self.op == "reduce_scatter":
            return self.reduced().reshape(self.ranks, -1)
        if self.op == "all_gather":
            return np.tile(self.values.ravel(), (self.ranks, 1))
        if self.op == "broadcast":
            return np.tile(self.values[self.root], (self.ranks, 1))
        return self.exchanged(self.values)

    def exchanged(self, rows: Floats) -> Floats:
        """Slot s of row r becomes slot r of row s: all_to_all, and its own adjoint."""
        return rows.reshape(self.ranks, self.ranks, -1).swapaxes(0, 1).reshape(self.ranks, -1)

    def slots(self, rows: Floats) -> Floats:
        """Row r in slot r of a row of zeros: (P, m) to (P, P·m)."""
        placed = np.zeros((self.ranks, *rows.shape))
        placed[np.arange(self.ranks), np.arange(self.ranks)] = rows
        return placed.reshape(self.ranks, -1)

    def own_slot(self, rows: Floats) -> Floats:
        """Slot r of row r: (P, P·m) to (P, m)."""
        cut: Floats = rows.reshape(self.ranks, self.ranks, -1)[np.arange(self.ranks), np.arange(self.ranks)]
        return cut

    def partials(self) -> Floats:
        """d(x_1 ⊕ … ⊕ x_P)/dx_r, element by element, (P, n)."""
        if self.reduce in ("sum", "avg"):
            return np.full(self.values.shape, 1.0 if self.reduce == "sum" else 1 / self.ranks)
        if self.reduce == "product":
            ones = np.ones((1, self.values.shape[1]))
            before: Floats = np.multiply.accumulate(np.vstack([ones, self.values[:-1]]), axis=0)
            after: Floats = np.multiply.accumulate(np.vstack([ones, self.values[:0:-1]]), axis=0)[::-1]
            return before * after
        held: Floats = (self.values == self.reduced()).astype(np.float64)
        share: Floats = held / np.sum(held, axis=0)
        return share

    def ties(self) -> bool:
        """Whether more than one rank holds some maximum or minimum."""
        if self.op not in REDUCING or self.reduce not in ("max", "min"):
            return False
        return bool(((self.values == self.reduced()).sum(axis=0) > 1).any())


def adjoint(c: Collective) -> Floats:
    total: Floats = np.sum(c.grads, axis=0)
    if c.op == "all_reduce":
        return c.partials() * total
    if c.op == "reduce_scatter":
        return c.partials() * c.grads.ravel()
    if c.op == "all_gather":
        return total.reshape(c.ranks, -1)
    if c.op == "broadcast":
        return np.where(np.arange(c.ranks)[:, None] == c.root, total, 0.0)
    return c.exchanged(c.grads)


def _functional(c: Collective) -> Floats | WayReason:
    if c.op in REDUCING and c.reduce != "sum":
        return "raises"
    return c.grads if c.op == "broadcast" else adjoint(c)


def _nn_functional(c: Collective) -> Floats | WayReason:
    if c.op == "all_reduce":
        gradients = Collective("all_reduce", c.reduce, c.root, c.grads, c.grads)
        return gradients.outputs()
    if c.op == "reduce_scatter":
        return np.tile(c.grads.ravel(), (c.ranks, 1))
    return adjoint(c)


def _plain(c: Collective) -> Floats | WayReason:
    if c.op in ("all_gather", "all_to_all"):
        return "no_gradient"
    # Gloo divides the sum by P in a step that autograd does record
    grads = c.grads / c.ranks if c.op in REDUCING and c.reduce == "avg" else c.grads
    return c.slots(grads) if c.op == "reduce_scatter" else grads


def _local(c: Collective) -> Floats:
    if c.op == "all_reduce":
        return c.partials() * c.grads
    if c.op == "reduce_scatter":
        return c.partials() * c.slots(c.grads)
    if c.op == "all_gather":
        return c.own_slot(c.grads)
    if c.op == "broadcast":
        return np.where(np.arange(c.ranks)[:, None] == c.root, c.grads, 0.0)
    return c.slots(c.own_slot(c.grads))


WAYS: dict[WayName, Callable[[Collective], Floats | WayReason]] = {
    "adjoint": adjoint,
    "functional": _functional,
    "nn_functional": _nn_functional,
    "plain": _plain,
    "local": _local,
}
