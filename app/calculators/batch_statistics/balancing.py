"""The load-balancing loss of a mixture of experts over groups of cells.

Words and symbols: cell (r, k) has n tokens, of which expert i was `assigned` a_i, and the mean router `probability` p_i
of its tokens. For a group with T tokens

    L = E · Σ_i f_i · p_i,    f_i = Σ a_i / (top_k · T),    p_i = Σ n·p_i / T         (arXiv 2101.03961, 2501.11873)

with E experts. f counts, so it has no gradient; L depends on the router by p alone, and by one token's probability of
expert i its derivative is E·f_i/(T·groups), where the plain mean over `groups` groups is taken. Schemes:

    global            f and p of the window
    global_f_local_p  f of the window, p of each cell, mean over cells
    f_so_far          f of microsteps 1 … k over all ranks, p of each cell, mean over cells (a running count)
    per_microstep     f and p of each microstep over ranks
    per_rank          f and p of each rank's window
    per_microbatch    f and p of each cell

Arrays are over cells, (C,) and (C, E), exact for small windows.
"""

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from samestep.app.calculators.batch_statistics.groups import Groups, Ints, Shape, groupings
from samestep.app.contract.models import Reason
from samestep.app.mathematics.window import Numbers


@dataclass(frozen=True)
class Routing:
    """A window of routed tokens; `tokens` and `assigned` are whole, `probability` is of the window's own kind."""

    shape: Shape
    top_k: int
    tokens: Ints
    assigned: Ints
    probability: Numbers

    @property
    def is_exact(self) -> bool:
        return self.probability.dtype == object

    @property
    def experts(self) -> int:
        return int(self.assigned.shape[1])

    def own(self, whole: Ints) -> Numbers:
        """Whole numbers of the window's own kind."""
        numbers: Numbers = whole.astype(object) * Fraction(1) if self.is_exact else whole.astype(np.float64)
        return numbers


@dataclass(frozen=True)
class Balanced:
    """The loss of a scheme, its derivative by a token's probability (C, E), and f·p of every expert, over groups."""

    value: Any
    gradients: Numbers
    products: Numbers


def balanced(routing: Routing) -> dict[str, Balanced | Reason]:
    """Every scheme, or why it has no value."""
    if not routing.tokens.sum():
        return dict.fromkeys(SCHEMES, "zero_count")
    groups = groupings(routing.shape)
    whole, cells = groups["window"], groups["cell"]
    found: dict[str, Balanced | Reason] = {
        "global": _scheme(routing, _shares(routing, whole), whole),
        "global_f_local_p": _scheme(routing, _shares(routing, whole), cells),
        "f_so_far": _scheme(routing, _shares_so_far(routing), cells),
    }
    for name, by in (("per_microstep", "microstep"), ("per_rank", "rank"), ("per_microbatch", "cell")):
        found[name] = _scheme(routing, _shares(routing, groups[by]), groups[by])
    return found


SCHEMES = ("global", "global_f_local_p", "f_so_far", "per_microstep", "per_rank", "per_microbatch")


def _by_group(cells: Numbers, groups: Groups) -> Numbers:
    sums = np.zeros((groups.count, *cells.shape[1:]), dtype=cells.dtype)
    np.add.at(sums, groups.of_cell, cells)
    return sums


def _shares(routing: Routing, groups: Groups) -> Numbers:
    """f of each cell's group, (C, E); 0 where the group has no tokens."""
    tokens = _by_group(routing.tokens, groups)
    assigned = routing.own(_by_group(routing.assigned, groups))
    shares = assigned / routing.own(np.where(tokens > 0, tokens * routing.top_k, 1))[:, None]
    return np.asarray(shares[groups.of_cell])


def _shares_so_far(routing: Routing) -> Numbers:
    ranks, microsteps = routing.shape
    tokens = routing.tokens.reshape(ranks, microsteps).sum(axis=0).cumsum()
    assigned = routing.assigned.reshape(ranks, microsteps, -1).sum(axis=0).cumsum(axis=0)
    shares = routing.own(assigned) / routing.own(np.where(tokens > 0, tokens * routing.top_k, 1))[:, None]
    return np.asarray(np.tile(shares, (ranks, 1)))


def _scheme(routing: Routing, shares: Numbers, groups: Groups) -> Balanced | Reason:
    """The mean over groups of E·Σ f·p, with p of the group; `shares` is f, one row a cell."""
    tokens = _by_group(routing.tokens, groups)
    if not tokens.all():
        return "empty_cell"
    weights = 1 / routing.own(tokens * groups.count)[groups.of_cell]
    gradients = routing.experts * shares * weights[:, None]
    products = (gradients * routing.probability * routing.own(routing.tokens)[:, None]).sum(axis=0)
    return Balanced(products.sum(), np.asarray(gradients), np.asarray(products))
