"""How an implementation weights the cells of a window: one scheme, and the sum that it makes.

    (1/reduction) · Σ_r Σ_k multiplier / denominator / accumulation_divisor · G_rk

Every factor lives on one of three levels: the whole window (a scalar), the replicas (P,) or the cells (C,). The sum is
taken on the coarsest level that holds them all, so that a scheme with one factor for the window costs one product.
"""

from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BeforeValidator, Field, WithJsonSchema

from app.calculators.window import Numbers, Window, total
from app.contract import InputError, Inputs, Real, Reason, Rows, exact, not_negative, number_schema, positive, rows_of

_TABLE_SCHEMA: dict[str, object] = {"type": "array", "items": {"type": "array", "items": number_schema()}}


def _factor(words: tuple[str, ...], number: Any, *, table: bool) -> Any:
    """A field that is one of `words`, a number, or (where `table`) one number a cell."""

    def read(value: object) -> object:
        if isinstance(value, str) and value in words:
            return value
        if table and isinstance(value, list | tuple):
            return rows_of(value)
        try:
            return number(value)
        except InputError as error:
            listed = ", ".join(words)
            en, zh = f"{error.en}; or one of {listed}", f"{error.zh}；或者是 {listed} 之一"
            raise InputError(en, zh, code=error.code) from None

    options = [{"enum": list(words)}, number_schema(), *([_TABLE_SCHEMA] if table else [])]
    return BeforeValidator(read), WithJsonSchema({"anyOf": options})


_denominator, _denominator_schema = _factor(("one", "cell", "replica", "global"), not_negative, table=True)
_multiplier, _multiplier_schema = _factor(("P",), exact, table=True)
_divisor, _divisor_schema = _factor(("K_r", "K_max"), positive, table=False)
_reduction, _reduction_schema = _factor(("mean", "sum"), positive, table=False)


class Scheme(Inputs):
    """What an implementation does with the gradient sum of every cell; the name is free, the fields decide."""

    name: str = Field(min_length=1, max_length=120)
    denominator: Annotated[str | Real | Rows, _denominator, _denominator_schema]
    """one, cell (n_rk), replica (Σ_k n_rk), global (N), a number, or a table with one number a cell."""
    multiplier: Annotated[str | Real | Rows, _multiplier, _multiplier_schema] = exact(1)
    """A number, `P`, or a table."""
    accumulation_divisor: Annotated[str | Real, _divisor, _divisor_schema] = exact(1)
    """A number, `K_r` (the replica's own number of microsteps) or `K_max`."""
    reduction: Annotated[str | Real, _reduction, _reduction_schema] = "mean"
    """What happens across replicas: mean (divides by P), sum, or division by a number."""
    empty_cell: Literal["undefined", "skip", "clamp1"] = "undefined"
    """What 0/0 becomes: undefined, left out, or 0/1."""
    regularizer_per: Literal["microstep", "replica", "none"] = "none"
    """Where a regulariser is added, if the objective has one."""


WINDOW, REPLICA, CELL = 0, 1, 2


@dataclass(frozen=True)
class Weights:
    """What a scheme multiplies every unit of mass by: a scalar, or one value a replica (P,) or a cell (C,).

    `value` is None where the scheme is undefined, with the reason.
    """

    value: Any
    level: int
    reason: Reason | None = None

    def over_cells(self, window: Window) -> Numbers:
        """The same weights, one a cell: (C,)."""
        if self.level == WINDOW:
            return np.full(len(window.counts), self.value, dtype=window.counts.dtype)
        return _lift(self.value, self.level, CELL, window)  # type: ignore[no-any-return]

    def gradient(self, window: Window) -> Any:
        """The weighted sum of the cells' gradient sums: a scalar, or (d,)."""
        match self.level:
            case 0:
                return self.value * window.total_gradient
            case 1:
                return self._sum(window.replica_gradients)
            case _:
                return self._sum(window.gradient_sums)

    def loss(self, window: Window) -> Any:
        """The weighted sum of the cells' loss sums; None when the window has no losses."""
        if window.loss_sums is None:
            return None
        match self.level:
            case 0:
                return self.value * window.total_loss
            case 1:
                return self._sum(window.replica_losses)
            case _:
                return self._sum(window.loss_sums)

    def _sum(self, sums: Any) -> Any:
        if sums.dtype != object:
            return self.value @ sums
        return total((self.value if sums.ndim == 1 else self.value[:, None]) * sums)


def weights(scheme: Scheme, window: Window) -> Weights:
    """The weight of a unit of mass under `scheme`; InputError where a table does not fit the window."""
    factors = _denominator_of(scheme, window), _multiplier_of(scheme, window), _divisor_of(scheme, window)
    level = max(of for _, of in factors)
    denominator, multiplier, divisor = (_lift(value, of, level, window) for value, of in factors)
    scale = multiplier / (divisor * reduction_divisor(scheme, window))
    if np.all(denominator):
        return Weights(scale / denominator, level)
    empty = denominator == 0
    if scheme.empty_cell == "undefined":
        return Weights(None, level, "empty_cell" if level != WINDOW and window.total else "zero_count")
    if level == WINDOW or not isinstance(denominator, np.ndarray):
        return Weights(scale * 0, level)
    return Weights(np.where(empty, 0, scale / np.where(empty, 1, denominator)), level)


def reduction_divisor(scheme: Scheme, window: Window) -> Any:
    """What the sum over replicas is divided by: P, 1, or the given number."""
    if isinstance(scheme.reduction, Fraction):
        return window.number(scheme.reduction)
    return window.number(window.replicas if scheme.reduction == "mean" else 1)


def accumulation_divisors(scheme: Scheme, window: Window) -> Any:
    """What every microstep's loss is divided by: a scalar, or one value a replica (P,)."""
    return _divisor_of(scheme, window)[0]


def _denominator_of(scheme: Scheme, window: Window) -> tuple[Any, int]:
    match scheme.denominator:
        case "one":
            return window.number(1), WINDOW
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
        return window.number(scheme.accumulation_divisor), WINDOW
    if scheme.accumulation_divisor == "K_max" or len(set(window.sizes)) == 1:
        return window.number(max(*window.sizes, 1)), WINDOW
    return window.numbers([max(size, 1) for size in window.sizes]), REPLICA


def _given(value: Any, field: str, scheme: Scheme, window: Window) -> tuple[Any, int]:
    if not isinstance(value, tuple):
        return window.number(value), WINDOW
    if tuple(len(row) for row in value) != window.sizes:
        en = f"the {field} table of scheme “{scheme.name}” needs one number a cell, in the shape of the window"
        zh = f"方案“{scheme.name}”的 {field} 表须与窗口形状相同，每格一个数"
        raise InputError(en, zh, field=("schemes", field), code="shape_mismatch")
    cells = [cell for row in value for cell in row]
    if field == "denominator" and any(cell < 0 for cell in cells):
        en, zh = f"the denominators of scheme “{scheme.name}” must be 0 or more", f"方案“{scheme.name}”的分母不能小于 0"
        raise InputError(en, zh, field=("schemes", field), code="greater_than_equal")
    return window.numbers(cells), CELL


def _lift(value: Any, level: int, target: int, window: Window) -> Any:
    """Values of replicas as values of cells; scalars broadcast by themselves."""
    return window.over_cells(value) if level == REPLICA and target == CELL else value
