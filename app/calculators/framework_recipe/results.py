"""What a recipe answers: who divides by what, what every token weighs, and the factor that is missing."""

from typing import Literal

from samestep.app.calculators.framework_recipe.rules import (
    FrameworkId,
    Tail,
    When,
    Who,
)
from samestep.app.contract import models

Objective = Literal["global_token_mean", "replica_equal", "microbatch_equal", "micro_step_equal"]


Reason = Literal["zero_count", "empty_cell", "not_stepped"]


class Step(models.Result):
    """Who divides by what, and when. `value` is the count where every cell has the same one; with `multiplies` it is a
    multiplication."""

    who: Who
    by: str
    value: str | None
    when: When
    multiplies: bool


class Cell(models.Result):
    """A cell's tokens: the weight that each really gets, the right one (1/N), and the factor on this cell's loss."""

    rank: int
    microstep: int
    n: int
    weight: float | None
    weight_exact: str | None
    right: float | None
    ratio: float | None
    factor: float | None
    factor_exact: str | None
    reason: Reason | None


class Experts(models.Result):
    """Experts of a group of E ranks: on how many ranks each has a copy, and what their gradient is against the dense
    parameters', with the factor that makes it right."""

    copies: int
    ratio: float
    factor: str


class Result(models.Result):
    """The weights and what is missing. `mass` = Σ n·w, 1 for a mean; `ratio` is w·N where all tokens have the same.

    `factor_expression` is f in n_rk, n_r, n_k, N, P, K; `factor` its value where it is the same for all cells. `tail`
    says what becomes of a window that is shorter than configured, `partial` that this one is. `release` is the one
    whose rule is applied, `measured_release` false where another version was asked for.
    """

    framework: FrameworkId
    setting: str
    release: str
    releases: list[str]
    measured_release: bool
    settings: list[str]
    P: int
    K: int
    N: int
    partial: bool
    tail: Tail
    your_loss: bool
    steps: list[Step]
    objective: Objective
    mass: float | None
    ratio: float | None
    ratio_exact: str | None
    defined: bool
    matches_reference: bool
    factor_expression: str
    factor: float | None
    factor_exact: str | None
    cells: list[Cell] | None
    experts: Experts | None
    measured_settings: list[str]
    source: str
    reason: Reason | None

    def tables(self) -> list[models.Table]:
        """The divisions, and the weights cell by cell."""
        steps = [(s.who, s.when, "times" if s.multiplies else "over", s.by, s.value) for s in self.steps]
        cells = [(c.rank, c.microstep, c.n, c.weight, c.right, c.ratio, c.factor, c.reason) for c in self.cells or ()]
        return [
            models.Table(header=("who", "when", "does", "by", "value"), rows=steps),
            models.Table(header=("rank", "microstep", "n", "weight", "right", "ratio", "factor", "reason"), rows=cells),
        ]
