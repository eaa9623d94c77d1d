"""What every recipe makes of the terms, as the answer has it."""

from typing import Literal

from samestep.app.contract.models import Reason, Result as ResultBase, Table

PenaltyName = Literal[
    "once",
    "every_microstep_divided_by_K",
    "every_microstep_then_ddp_mean",
    "every_replica_then_sum",
    "every_microstep_then_sum",
    "inside_the_global_count",
]


class Reference(ResultBase):
    """Σ_t c_t·ΣS/ΣN_t, and the penalties once. A term without units has no mean (null) and is left out; without any
    units and penalties there is no objective."""

    defined: bool
    reason: Reason | None
    value: float | None
    value_exact: str | None
    means: list[float | None]
    means_exact: list[str | None] | None


class TermResult(ResultBase):
    """One term under one recipe. `weights[r][k]` is what one unit of the cell weighs (coefficient included; 0 where
    there is none), `total_weight` their sum over units, `multiple` that over the coefficient (null where it is 0).
    Undefined where the recipe divides by nothing. Lists are null for large windows, fractions earlier."""

    defined: bool
    reason: Reason | None
    weights: list[list[float]] | None = None
    weights_exact: list[list[str]] | None = None
    total_weight: float | None = None
    total_weight_exact: str | None = None
    multiple: float | None = None
    multiple_exact: str | None = None
    uniform: bool | None = None
    value: float | None = None
    value_exact: str | None = None


class SchemeResult(ResultBase):
    """All terms under one recipe, or under one recipe each, with the penalties once. `matches_reference` says whether
    every unit of every term has its right weight c_t/N_t, which equal values do not."""

    defined: bool
    reason: Reason | None
    value: float | None
    value_exact: str | None
    matches_reference: bool
    ratio_to_reference: float | None
    recipes: list[str]
    terms: list[TermResult]


class PenaltyResult(ResultBase):
    """What a term without units counts for where it is added so: a multiple of itself, and all of them together."""

    defined: bool
    reason: Reason | None
    multiple: float | None
    multiple_exact: str | None
    value: float | None
    value_exact: str | None
    matches_reference: bool


class Result(ResultBase):
    """P, K, the terms with units (name, coefficient, N_t), and what every scheme makes of them."""

    replicas: int
    microsteps: int
    names: list[str]
    coefficients: list[float]
    counts: list[int]
    reference: Reference
    schemes: dict[str, SchemeResult]
    penalty: dict[PenaltyName, PenaltyResult]

    def tables(self) -> list[Table]:
        """One row a scheme and term, one a way to add the penalties, then one a cell."""
        header = ("scheme", "loss", "matches_reference", "term", "recipe", *_TERM_FIELDS)
        rows = [
            (name, scheme.value, scheme.matches_reference, term, recipe, *(getattr(one, f) for f in _TERM_FIELDS))
            for name, scheme in self.schemes.items()
            for term, recipe, one in zip(self.names, scheme.recipes, scheme.terms, strict=True)
        ]
        penalties = [(name, *(value for _, value in way)) for name, way in self.penalty.items()]
        cells = [
            (name, term, r, k, weight)
            for name, scheme in self.schemes.items()
            for term, one in zip(self.names, scheme.terms, strict=True)
            for r, row in enumerate(one.weights or [])
            for k, weight in enumerate(row)
        ]
        return [
            Table(header=header, rows=rows),
            Table(header=("penalty", *PenaltyResult.model_fields), rows=penalties),
            Table(header=("scheme", "term", "rank", "microstep", "weight"), rows=cells),
        ]


_TERM_FIELDS = ("defined", "reason", "total_weight", "multiple", "multiple_exact", "uniform", "value", "value_exact")


class View(Result):
    """What the panel shows: one of the schemes, and what the penalties add where they are added once (null without)."""

    selected: str
    current: SchemeResult
    penalty_names: list[str]
    penalties: float | None
