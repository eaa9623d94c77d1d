"""What the rules for bringing replicas together are answered with, and what the panel draws of them."""

from typing import Literal, get_args

from pydantic import Field

from samestep.app.contract.models import Reason, Result as ResultBase, Table

SchemeName = Literal[
    "synchronous",
    "synchronous_uniform",
    "local_mean",
    "local_weighted",
    "outer",
    "outer_weighted",
    "outer_momentum_reset",
    "outer_sign_flipped",
]
SCHEMES: tuple[SchemeName, ...] = get_args(SchemeName)


class SchemeResult(ResultBase):
    """One rule: θ after each round (null above MAX_LISTED_CELLS rounds), its end, and that less the synchronous one.

    `progress_ratio` is the way gone over the synchronous run's, null where that did not move (`zero_reference`);
    `reductions` how often the replicas communicate. Right is what ends every round where the synchronous run does.
    Fractions are null where the run was computed in float64.
    """

    defined: bool
    reason: Reason | None
    matches_reference: bool
    path: list[float] | None
    final: float
    final_exact: str | None
    difference: float
    difference_exact: str | None
    progress_ratio: float | None
    reductions: int


class Averages(ResultBase):
    """Moving averages e ← β·e + (1 - β)·θ from e = θ₀ on: after every synchronous step; after every step of replica 0,
    and of each replica, in the run `local_weighted` (a replica's own θ, before a round's mean); once a round, of the
    shared θ there."""

    of_synchronous: float
    of_synchronous_exact: str | None
    replica_zero: float
    replica_zero_exact: str | None
    weighted_mean_over_replicas: float
    weighted_mean_over_replicas_exact: str | None
    once_a_round: float
    once_a_round_exact: str | None


class Result(ResultBase):
    """Every rule side by side; `deltas` are θ - e_r of the first round, `weights` samples_r/Σ samples."""

    deltas: list[float]
    deltas_exact: list[str] | None
    weights: list[float]
    weights_exact: list[str] | None
    schemes: dict[SchemeName, SchemeResult]
    ema: Averages | None = Field(description="null without ema_decay")

    def tables(self) -> list[Table]:
        """One row a rule, one a round, one a replica, and the moving averages."""
        header = tuple(name for name in SchemeResult.model_fields if name != "path")
        rows = [(name, *(getattr(scheme, field) for field in header)) for name, scheme in self.schemes.items()]
        tables = [Table(header=("scheme", *header), rows=rows)]
        paths = [scheme.path for scheme in self.schemes.values() if scheme.path is not None]
        if paths:
            by_round = [(k + 1, *places) for k, places in enumerate(zip(*paths, strict=True))]
            tables.append(Table(header=("round", *self.schemes), rows=by_round))
        replicas = [(r, *pair) for r, pair in enumerate(zip(self.weights, self.deltas, strict=True))]
        tables.append(Table(header=("replica", "weight", "delta"), rows=replicas))
        if self.ema is not None:
            tables.append(Table(header=("moving_average", "value"), rows=list(self.ema)))
        return tables


class Replica(ResultBase):
    """What one replica wants, how much it counts, and its pseudo-gradient in the first round."""

    target: float
    curvature: float
    weight: float
    delta: float


class Round(ResultBase):
    """Some places of one round: the synchronous θ and each replica's at the same steps, and the shared θ before and
    after the round."""

    steps: list[int]
    synchronous: list[float]
    replicas: list[list[float]]
    begin: float
    end: float


class View(Result):
    """What the panel shows: one rule beside the synchronous run, the first replicas and rounds."""

    selected: SchemeName
    current: SchemeResult
    start: float
    local_steps: int
    rounds: int
    replicas: list[Replica]
    shown: list[Round]
