"""What a scheme is: how an implementation divides, multiplies and reduces, as a body names it."""

from collections.abc import Callable
from fractions import Fraction
from typing import Annotated, Literal

from pydantic import Field

from samestep.app.contract.fields import number_schema, word_or_number
from samestep.app.contract.models import Inputs
from samestep.app.contract.numbers import exact, not_negative, positive
from samestep.app.contract.rows import Rows, rows_of

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
