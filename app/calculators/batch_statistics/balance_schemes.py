"""The load-balancing schemes as the answer has them."""

from typing import Any

from samestep.app.calculators.batch_statistics.balancing import Balanced, Routing, balanced
from samestep.app.calculators.batch_statistics.groups import same
from samestep.app.calculators.batch_statistics.results import LoadBalanceScheme
from samestep.app.contract.limits import MAX_LISTED_CELLS
from samestep.app.contract.models import Reason
from samestep.app.mathematics.window import as_float, as_text


def load_balance(routing: Routing) -> dict[str, LoadBalanceScheme]:
    """Every scheme beside that of the window."""
    found = balanced(routing)
    return {name: _balance(scheme, found["global"], routing) for name, scheme in found.items()}


def _balance(scheme: Balanced | Reason, right: Balanced | Reason, routing: Routing) -> LoadBalanceScheme:
    if isinstance(scheme, str) or isinstance(right, str):
        reason = scheme if isinstance(scheme, str) else None
        return LoadBalanceScheme(defined=False, reason=reason, matches_reference=False)
    filled = routing.tokens > 0
    listed = scheme.gradients.size <= MAX_LISTED_CELLS
    return LoadBalanceScheme(
        defined=True,
        reason=None if right.value else "zero_reference",
        matches_reference=same(scheme.gradients[filled], right.gradients[filled]),
        value=as_float(scheme.value),
        value_exact=as_text(scheme.value),
        ratio_to_reference=as_float(scheme.value / right.value) if right.value else None,
        probability_gradients=_by_cell(as_float(scheme.gradients), routing) if listed else None,
        probability_gradients_exact=(
            _by_cell([as_text(row) for row in scheme.gradients], routing) if routing.is_exact else None
        ),
        products=as_float(scheme.products) if listed else None,
    )


def _by_cell(rows: list[Any], routing: Routing) -> list[list[Any]]:
    width = routing.shape[1]
    return [rows[start : start + width] for start in range(0, len(rows), width)]
