"""What each scheme makes of a statistic, as the answer has it: one kind of scheme a term.

Lists over values, cells or groups are null above MAX_LISTED_CELLS entries, fractions above MAX_EXACT_CELLS values.
"""

from samestep.app.calculators.batch_statistics.inputs import Term
from samestep.app.contract.models import Reason, Result as ResultBase, Table

SHOWN_SCOPES, SHOWN_POINTS = 6, 24
"""So much is drawn."""


class Scheme(ResultBase):
    """Whether there is an answer, why not, and whether it is that of the window taken as a whole."""

    defined: bool
    reason: Reason | None
    matches_reference: bool


class LoadBalanceScheme(Scheme):
    """The loss, and `probability_gradients[r][k][i]`, its derivative by expert i's probability of one token of the
    cell; `products` are E·f·p of every expert, which add up to the loss. What matches is the derivatives: an equal
    value is no equal gradient."""

    value: float | None = None
    value_exact: str | None = None
    ratio_to_reference: float | None = None
    probability_gradients: list[list[list[float]]] | None = None
    probability_gradients_exact: list[list[list[str]]] | None = None
    products: list[float] | None = None


class WhitenScheme(Scheme):
    """Means and variances, one a group; the whitened values of each cell, null where its group has none; the largest
    distance from `global`."""

    means: list[float | None] | None
    means_exact: list[str | None] | None
    variances: list[float | None] | None
    variances_exact: list[str | None] | None
    whitened: list[list[list[float] | None]] | None
    max_abs_difference: float | None


class BatchNormScheme(Scheme):
    """Mean and biased variance of each cell's group, the normalised values, and the running statistics of each rank
    after the window; all null where a group cannot be normalised."""

    mean: list[list[float]] | None = None
    mean_exact: list[list[str]] | None = None
    variance: list[list[float]] | None = None
    variance_exact: list[list[str]] | None = None
    normalised: list[list[list[float]]] | None = None
    max_abs_difference: float | None = None
    running_mean: list[float] | None = None
    running_mean_exact: list[str] | None = None
    running_var: list[float] | None = None
    running_var_exact: list[str] | None = None


class GroupStatistics(ResultBase):
    """Mean and biased variance of one group of a sample's channels."""

    mean: float
    mean_exact: str | None
    variance: float
    variance_exact: str | None


class GroupNormScheme(Scheme):
    """The groups of a sample over all shards, their statistics by sample, and the normalised samples (null in a group
    without variance)."""

    groups: int
    statistics: list[list[GroupStatistics]] | None
    normalised: list[list[float | None]] | None
    max_abs_difference: float | None


AnyScheme = LoadBalanceScheme | WhitenScheme | BatchNormScheme | GroupNormScheme


class Result(ResultBase):
    """All schemes of one term. Ranks and microsteps are null for group_norm, `groups_per_shard` for the others."""

    term: Term
    replicas: int | None
    microsteps: int | None
    groups_per_shard: int | None
    schemes: dict[str, AnyScheme]

    def tables(self) -> list[Table]:
        """One row a scheme; lists are in the JSON only, but for those of groups and cells, one row each."""
        first = next(iter(self.schemes.values()))
        plain = [name for name in type(first).model_fields if name not in _LISTS]
        rows = [(name, *(getattr(scheme, field) for field in plain)) for name, scheme in self.schemes.items()]
        entries = [
            (name, field, ".".join(map(str, place)), value)
            for name, scheme in self.schemes.items()
            for field in type(scheme).model_fields
            if field in _LISTS
            for place, value in _entries(getattr(scheme, field), ())
        ]
        return [
            Table(header=("scheme", *plain), rows=rows),
            Table(header=("scheme", "field", "place", "value"), rows=entries),
        ]


_LISTS = {
    *("probability_gradients", "probability_gradients_exact", "products", "means", "means_exact", "variances"),
    *("variances_exact", "whitened", "mean", "mean_exact", "variance", "variance_exact", "normalised", "running_mean"),
    *("running_mean_exact", "running_var", "running_var_exact", "statistics"),
}

_Leaf = str | float | int | bool | None


def _entries(value: object, place: tuple[int | str, ...]) -> list[tuple[tuple[int | str, ...], _Leaf]]:
    """Every number of nested lists, with the way to it."""
    if isinstance(value, list):
        return [entry for i, inner in enumerate(value) for entry in _entries(inner, (*place, i))]
    if isinstance(value, GroupStatistics):
        return [((*place, name), inner) for name, inner in value]
    assert value is None or isinstance(value, str | float | int)
    return [(place, value)]


class Scope(ResultBase):
    """One group as the figure draws it: some of its values, and mean and deviation where it has them."""

    label: str
    points: list[float]
    mean: float | None
    deviation: float | None


class View(Result):
    """What the panel shows: one scheme beside the reference, and the first groups of both (none for load_balance)."""

    selected: str
    current: AnyScheme
    reference: str
    reference_scopes: list[Scope]
    scopes: list[Scope]
