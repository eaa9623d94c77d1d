"""What the ledger answers: the reference, every scheme against it, and the panel's replicas and cells."""

from typing import Annotated, Any, Literal

from pydantic import SkipValidation
from typing_extensions import TypedDict

from samestep.app.contract.models import Reason, Result as ResultBase, Table

SchemeName = Literal[
    "P_over_N_then_ddp_mean",
    "one_over_N_then_sum",
    "replica_mean_then_ddp_mean",
    "microstep_mean_div_K_then_ddp_mean",
    "microstep_mean_summed_then_ddp_mean",
    "one_over_N_then_ddp_mean",
    "P_over_N_then_sum",
    "P_over_N_extra_div_K",
]


Assumed = tuple[Literal["gradients"], ...]
"""What was not given and is filled in: what rests on it is no answer about the reader's run, the weights are."""


class Reference(ResultBase):
    """The mean over the window. `cell_weights[r][k]` = n_rk / N."""

    defined: bool
    grad: float | list[float] | None
    grad_exact: str | list[str] | None
    loss: float | None
    cell_weights: list[list[float]] | None
    theta_after_sgd: float | list[float] | None
    decision: Literal["update", "skip_all_replicas"]
    reason: Reason | None


class SchemeResult(ResultBase):
    """What one scheme computes, against the reference.

    `ratio_to_reference` and `sign_flipped` speak of scalar gradients, `cosine_with_reference` of vectors; they are null
    where the scheme or the reference is undefined, or the reference is 0. `matches_reference` speaks of these
    gradients, `weights_match` of every unit's weight: equal numbers from other weights part with other gradients.
    `loss_reason` says why there is no loss to log where the gradient is defined.
    """

    defined: bool
    grad: float | list[float] | None
    grad_exact: str | list[str] | None
    reported_loss: float | None
    ratio_to_reference: float | None
    sign_flipped: bool | None
    cosine_with_reference: float | None
    matches_reference: bool | None
    theta_after_sgd: float | list[float] | None
    reason: Reason | None
    loss_reason: Reason | None
    weights_match: bool | None


class Result(ResultBase):
    """`N` is the mass of the window; one entry of `schemes` a scheme, by name; `assumed` names what was not given."""

    N: float
    reference: Reference
    schemes: dict[str, SchemeResult]
    assumed: Assumed = ()

    def tables(self) -> list[Table]:
        header = ("scheme", "defined", "grad", "reported_loss", "ratio_to_reference", "matches_reference", "reason")
        rows: list[tuple[Any, ...]] = [("reference", *_csv(self.reference, "loss"), None, None, self.reference.reason)]
        rows += [
            (name, *_csv(s, "reported_loss"), s.ratio_to_reference, s.matches_reference, s.reason)
            for name, s in self.schemes.items()
        ]
        return [Table(header=header, rows=rows)]


class Row(ResultBase):
    """One replica: its mass, its gradient per unit and in sum, its right weight n_r/N, and what the scheme gives it."""

    name: str
    n: float
    gradient: float | list[float] | None
    gradient_sum: float | list[float]
    weight: float | None
    current_weight: float | None
    reason: Reason | None


class CellRow(TypedDict):
    """One cell: the weight of each of its tokens, right (1/N) and under the chosen scheme."""

    replica: int
    microstep: int
    n: float
    token_weight: float | None
    current_token_weight: float | None


class Spread(ResultBase):
    """The tokens that the chosen scheme weighs most and least: replica, and the microstep (from 0) where a replica has
    several.

    `times` is the one weight over the other: 1 where all are alike, null where the lesser is 0 or too far below for
    float64. `of_right` is the common weight over the right one, 1/N, where all are alike.
    """

    heaviest: tuple[str, int | None]
    lightest: tuple[str, int | None]
    times: float | None
    of_right: float | None


class View(Result):
    """What the panel shows: the chosen scheme beside the reference, replica by replica and cell by cell.

    `spread` is null where the scheme is undefined or there is no token. `theta` and `lr` are null where the body asks
    for no step.
    """

    selected: str
    current: SchemeResult
    rows: list[Row]
    cells: Annotated[list[CellRow], SkipValidation] | None
    spread: Spread | None
    decision: Literal["update", "skip_all_replicas", "undefined"]
    theta: float | list[float] | None
    lr: float | None

    def tables(self) -> list[Table]:
        header = ("replica", "n", "gradient", "gradient_sum", "weight", "current_weight")
        rows = [
            (r.name, r.n, _written(r.gradient), _written(r.gradient_sum), r.weight, r.current_weight) for r in self.rows
        ]
        return [Table(header=header, rows=rows), *super().tables()]


def _csv(entry: Reference | SchemeResult, loss: str) -> tuple[Any, ...]:
    return entry.defined, _written(entry.grad), getattr(entry, loss)


def _written(gradient: float | list[float] | None) -> float | str | None:
    """A gradient in one cell of a table."""
    return " ".join(map(repr, gradient)) if isinstance(gradient, list) else gradient
