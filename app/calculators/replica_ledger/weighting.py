"""How an implementation weights the cells of a window: one scheme, and the sum that it makes.

    (1/reduction) · Σ_r Σ_k multiplier / denominator / accumulation_divisor · G_rk

Every factor lives on one of three levels: the whole window (a scalar), the replicas (P,) or the cells (C,). The sum is
taken on the coarsest level that holds them all, so that a scheme with one factor for the window costs one product.
"""

from collections.abc import Callable, Hashable, Iterable
from fractions import Fraction
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from samestep.app.contract.errors import InputError
from samestep.app.contract.fields import number_schema, word_or_number
from samestep.app.contract.models import Inputs, Reason
from samestep.app.contract.numbers import exact, not_negative, positive
from samestep.app.contract.rows import Rows, rows_of
from samestep.app.mathematics.window import CELL, REPLICA, WINDOW, Window, divided, total

_TABLE = {"type": "array", "items": {"type": "array", "items": number_schema()}}
_NUMBER_OR_TABLE = {"anyOf": [number_schema(), _TABLE]}


def _or_table(read: Callable[[object], Fraction]) -> Callable[[object], Fraction | Rows]:
    """A number, or one number a cell."""
    return lambda value: rows_of(value) if isinstance(value, list | tuple) else read(value)


_denominator = word_or_number(("one", "cell", "replica", "global"), _or_table(not_negative), _NUMBER_OR_TABLE)
_multiplier = word_or_number(("P",), _or_table(exact), _NUMBER_OR_TABLE)
_divisor = word_or_number(("K_r", "K_max"), positive, number_schema())
_reduction = word_or_number(("mean", "sum"), positive, number_schema())


EmptyCell = Literal["undefined", "skip", "clamp1", "zero_gradient"]
"""What the mean of a cell without mass becomes: undefined in loss and gradient, as a hand-written sum/count is; left
out; 0/1; or, as PyTorch's `cross_entropy` gives it (2.13), a NaN to log and a gradient of exactly 0."""


class Scheme(Inputs):
    """What an implementation does with the gradient sum of every cell; the name is free, the fields decide."""

    name: str = Field(min_length=1, max_length=120)
    denominator: Annotated[str | Fraction | Rows, _denominator]
    """one, cell (n_rk), replica (Σ_k n_rk), global (N), a number, or a table with one number a cell."""
    multiplier: Annotated[str | Fraction | Rows, _multiplier] = exact(1)
    """A number, `P`, or a table."""
    accumulation_divisor: Annotated[str | Fraction, _divisor] = exact(1)
    """A number, `K_r` (the replica's own number of microsteps) or `K_max`."""
    reduction: Annotated[str | Fraction, _reduction] = "mean"
    """What happens across replicas: mean (divides by P), sum, or division by a number."""
    empty_cell: EmptyCell = "undefined"
    regularizer_per: Literal["microstep", "replica", "none"] = "none"
    """Where a regulariser is added, if the objective has one."""


class Weights(NamedTuple):
    """What a scheme multiplies every unit of mass by: `scale / denominator`, each a scalar or one value a replica (P,)
    or a cell (C,), as `level` says; 0 where the denominator is 0 and the scheme leaves empty cells out.

    `scale` is None where the scheme is undefined, with the reason. `loss_reason` says why no loss can be logged though
    the gradient is defined.
    """

    scale: Any
    denominator: Any
    level: int
    reason: Reason | None = None
    loss_reason: Reason | None = None

    def over_cells(self, window: Window) -> NDArray[np.float64]:
        """The weights, one a cell, in float64: (C,)."""
        scale, denominator = (np.asarray(part, dtype=float) for part in (self.scale, self.denominator))
        on_level = scale * divided(np.ones(denominator.shape), denominator)
        on_cells = _lift(on_level, self.level, CELL, window)
        return np.full(len(window.counts), on_cells) if self.level == WINDOW else on_cells

    def gradient(self, window: Window) -> Any:
        """The weighted sum of the cells' gradient sums: a scalar, or (d,)."""
        return self._sum(window, "gradient")

    def loss(self, window: Window) -> Any:
        """The weighted sum of the cells' loss sums; None when the window has no losses."""
        return None if window.loss_sums is None or self.loss_reason else self._sum(window, "loss")

    def are_right(self, window: Window) -> bool:
        """Whether every unit of mass weighs 1/N, within 1e-9 of it where the window is not exact."""
        if self.scale is None or not window.total:
            return False
        masses = (window.total, window.replica_counts, window.counts)[self.level]
        off = self.scale * window.total - self.denominator
        allowed = 0 if window.is_exact else 1e-9 * np.abs(np.asarray(self.denominator, dtype=float))
        return bool(np.all((np.abs(off) <= allowed) | (masses == 0)))

    def _sum(self, window: Window, what: Literal["gradient", "loss"]) -> Any:
        if isinstance(self.scale, np.ndarray):
            sums = window.sums(what, self.level)
            scale = self.scale if sums.ndim == 1 else self.scale[:, None]
            return total(scale * divided(sums, self.denominator))
        return self.scale * window.divided_sum(what, self.level, self.denominator)


class Group(NamedTuple):
    """Schemes that give every window of one shape the same weights, and what of the weights the shape decides:
    `scale` = multiplier / (accumulation_divisor · reduction), on its level."""

    schemes: tuple[Scheme, ...]
    scale: Any
    level: int


def alike(schemes: Iterable[Scheme], window: Window) -> tuple[Group, ...]:
    """Put together what is alike in windows of this shape, so that it is computed once.

    With one microstep a replica, for example, a mean over the cell is one over the replica.
    """
    groups: dict[Hashable, Group] = {}
    for scheme in schemes:
        scale, level = _scale_of(scheme, window)
        denominator = scheme.denominator
        if denominator == "cell" and set(window.sizes) == {1}:
            denominator = "replica"
        shared = level == WINDOW and scheme.regularizer_per == "none"
        key: Hashable = (denominator, scale, scheme.empty_cell) if shared else scheme.name
        known = groups.get(key, Group((), scale, level))
        groups[key] = known._replace(schemes=(*known.schemes, scheme))
    return tuple(groups.values())


def weights(group: Group, window: Window) -> Weights:
    """The weight of a unit of mass; InputError where a table does not fit the window."""
    scheme = group.schemes[0]
    denominator, level = _denominator_of(scheme, window)
    if level < group.level:
        denominator, level = _lift(denominator, level, group.level, window), group.level
    scale = _lift(group.scale, group.level, level, window)
    if window.all_filled(denominator):
        return Weights(scale, denominator, level)
    reason: Reason = "empty_cell" if level != WINDOW and window.total else "zero_count"
    if scheme.empty_cell == "undefined" or _divides_by_zero(scheme, window):
        return Weights(None, denominator, level, reason)
    return Weights(scale, denominator, level, loss_reason=reason if scheme.empty_cell == "zero_gradient" else None)


def _divides_by_zero(scheme: Scheme, window: Window) -> bool:
    """Whether a given denominator is 0 where there is something to divide: that is no empty cell's 0/0."""
    if isinstance(scheme.denominator, str):
        return False
    denominator, level = _denominator_of(scheme, window)
    if level == WINDOW:
        return bool(window.total)
    return bool(np.any((denominator == 0) & (window.counts != 0)))


def _scale_of(scheme: Scheme, window: Window) -> tuple[Any, int]:
    """multiplier / (accumulation_divisor · reduction), and its level; it does not depend on the counts."""
    multiplier, of_multiplier = _multiplier_of(scheme, window)
    divisor, of_divisor = _divisor_of(scheme, window)
    level = max(of_multiplier, of_divisor)
    below = _lift(divisor, of_divisor, level, window) * reduction_divisor(scheme, window)
    return _lift(multiplier, of_multiplier, level, window) / below, level


def reduction_divisor(scheme: Scheme, window: Window) -> int | Fraction:
    """What the sum over replicas is divided by: P, 1, or the given number."""
    if isinstance(scheme.reduction, Fraction):
        return scheme.reduction
    return window.replicas if scheme.reduction == "mean" else 1


def accumulation_divisors(scheme: Scheme, window: Window) -> Any:
    """What every microstep's loss is divided by: a scalar, or one value a replica (P,)."""
    return _divisor_of(scheme, window)[0]


def _denominator_of(scheme: Scheme, window: Window) -> tuple[Any, int]:
    match scheme.denominator:
        case "one":
            return window.one, WINDOW
        case "global":
            return window.total, WINDOW
        case "replica":
            return window.replica_counts, REPLICA
        case "cell":
            return window.counts, CELL
        case _:
            return _given(scheme.denominator, "denominator", scheme, window)


def _multiplier_of(scheme: Scheme, window: Window) -> tuple[Any, int]:
    if scheme.multiplier == "P":
        return window.number(window.replicas), WINDOW
    return _given(scheme.multiplier, "multiplier", scheme, window)


def _divisor_of(scheme: Scheme, window: Window) -> tuple[Any, int]:
    """K_r is one number for the window where all replicas have as many microsteps; without microsteps nothing is
    divided."""
    if isinstance(scheme.accumulation_divisor, Fraction):
        return scheme.accumulation_divisor, WINDOW
    if scheme.accumulation_divisor == "K_max" or window.is_rectangle:
        return max(*window.sizes, 1), WINDOW
    return window.numbers([max(size, 1) for size in window.sizes]), REPLICA


def _given(value: Any, field: str, scheme: Scheme, window: Window) -> tuple[Any, int]:
    if not isinstance(value, tuple):
        return value if window.is_exact else float(value), WINDOW
    if tuple(len(row) for row in value) != window.sizes:
        en = f"the {field} table of scheme “{scheme.name}” needs one number a cell, in the shape of the window"
        zh = f"方案“{scheme.name}”的 {field} 表须与窗口形状相同，每个单元格一个数"
        raise InputError(en, zh, field=("schemes", field), code="shape_mismatch")
    cells = [cell for row in value for cell in row]
    if field == "denominator" and any(cell < 0 for cell in cells):
        en, zh = f"the denominators of scheme “{scheme.name}” must be 0 or more", f"方案“{scheme.name}”的分母不能小于 0"
        raise InputError(en, zh, field=("schemes", field), code="greater_than_equal")
    return window.numbers(cells), CELL


def _lift(value: Any, level: int, target: int, window: Window) -> Any:
    """Values of replicas as values of cells; scalars broadcast by themselves."""
    return window.over_cells(value) if level == REPLICA and target == CELL else value
