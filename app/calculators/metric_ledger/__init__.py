"""An evaluation's loss, perplexity, accuracy and F1, pooled over ranks and by the usual ways that are not.

Words and symbols: batch b of rank r holds n new items (tokens or samples) with the mean loss ℓ, and `repeated_n` that
the sampler padded with; m = n + repeated_n. Sums run over all batches of all ranks. By the definition of a mean

    token_mean                 Σ n·ℓ / Σ n                 perplexity_of_token_mean   exp of it
    accuracy_pooled            Σ correct / Σ n             f1_pooled                  2Σtp / (2Σtp + Σfp + Σfn)

are those of the data set however it is split. All others see m in place of n (F1 takes its counts as given):

    token_mean_with_repeats, accuracy_with_repeats         the same sums with the repeats among them
    mean_of_batch_means        every batch alike           accuracy_mean_of_batches, f1_mean_of_batches
    mean_of_rank_means         every rank alike            accuracy_mean_of_ranks, f1_mean_of_ranks
    mean_of_rank_batch_means   every batch of a rank alike, then every rank
    sum_of_rank_means, sum_of_batch_means (a log that adds up and never divides), rank_zero
    perplexity_of_batch_mean, perplexity_of_rank_mean      exp of those means
    mean_of_batch_perplexities, mean_of_rank_perplexities  the exponential taken first
    token_weighted_perplexity  Σ m·e^ℓ / Σ m over batches

`means` says what becomes of a batch or rank without mass. Fractions are exact, beside them their nearest float64;
perplexities are float64.
"""

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

from pydantic import Field

from samestep.app.calculators.metric_ledger.batches import (
    ACCURACY,
    F1,
    LOSSES,
    MAX_COUNT,
    TABLE_COLUMNS,
    Batches,
    Cell,
    Level,
    cells_of_table,
    read,
)
from samestep.app.calculators.metric_ledger.means import (
    Empty,
    Entries,
    Outcome,
    exponential,
    first,
    mean_exponential,
    of_ranks_own_batches,
    pooled,
    same,
    weighted_exponential,
)
from samestep.app.calculators.metric_ledger.results import (
    METRICS,
    Batch,
    LossScheme,
    Metric,
    RankRow,
    Result,
    SchemeName,
    SchemeResult,
    View,
)
from samestep.app.contract.errors import InputError
from samestep.app.contract.fields import JSON, OptionalRankRows, whole_rows
from samestep.app.contract.limits import MAX_RANKS
from samestep.app.contract.models import Inputs as InputsBase, Query as QueryBase, selection
from samestep.app.contract.numbers import as_json, exact, finite_or_name
from samestep.app.contract.tables import TableForm
from samestep.app.mathematics.window import as_float, as_text

SHOWN_RANKS = 32
SHOWN_BATCHES = 16

_CountRows = Annotated[tuple[tuple[int, ...], ...], whole_rows(0, MAX_COUNT)]
_OptionalCountRows = Annotated[tuple[tuple[int, ...], ...] | None, whole_rows(0, MAX_COUNT).optional()]


class Inputs(InputsBase):
    """The batches of every rank; `empty` is what becomes of one without items, `optimised` the loss that the gradient
    follows."""

    cells: Annotated[list[list[Cell]], JSON] = Field(
        min_length=1, max_length=MAX_RANKS, examples=[[[{"n": 2, "loss": 0}], [{"n": 1, "loss": 2.302585092994046}]]]
    )
    empty: Empty = "undefined"
    optimised: LossScheme = "token_mean"

    tables: ClassVar = (TableForm(columns=("rank", "n"), optional=TABLE_COLUMNS, read=cells_of_table),)


_FIELDS = {
    "counts": "n",
    "losses": "loss",
    "correct": "correct",
    "tp": "tp",
    "fp": "fp",
    "fn": "fn",
    "repeated": "repeated_n",
    "repeated_losses": "repeated_loss",
    "repeated_correct": "repeated_correct",
}
"""What a matrix of the panel is called in a cell."""


class Query(QueryBase):
    """The panel: a matrix for each field of a cell, ranks in rows and batches in columns; blank is not given."""

    counts: _CountRows = Field(default="2;1", validate_default=True)
    losses: OptionalRankRows = Field(default="0;2.302585092994046", validate_default=True)
    correct: _OptionalCountRows = None
    tp: _OptionalCountRows = None
    fp: _OptionalCountRows = None
    fn: _OptionalCountRows = None
    repeated: _OptionalCountRows = None
    repeated_losses: OptionalRankRows = None
    repeated_correct: _OptionalCountRows = None
    empty: Empty = "undefined"
    optimised: LossScheme = "token_mean"
    scheme: SchemeName = "mean_of_rank_perplexities"

    def inputs(self) -> Inputs:
        """The body that these fields stand for; InputError where a matrix is not shaped like `counts`."""
        sizes = tuple(map(len, self.counts))
        given = {name: getattr(self, name) for name in _FIELDS if getattr(self, name) is not None}
        for name, rows in given.items():
            if tuple(map(len, rows)) != sizes:
                en, zh = "need as many rows and values as counts", "的行数和每行个数须与 counts 相同"
                raise InputError(en, zh, field=name, code="shape_mismatch")
        cells: list[list[Any]] = [
            [{_FIELDS[name]: as_json(exact(rows[r][b])) for name, rows in given.items()} for b in range(size)]
            for r, size in enumerate(sizes)
        ]
        return Inputs(cells=cells, empty=self.empty, optimised=self.optimised)


def compute(inputs: Inputs) -> Result:
    """Every metric by every scheme; InputError names the cell that cannot be used."""
    return _result(read(inputs.cells), inputs)


def present(inputs: Inputs, scheme: str | None = None) -> View:
    """What is shown of a body, with one of its schemes selected: the first, unless `scheme` names another."""
    batches = read(inputs.cells)
    result = _result(batches, inputs)
    metrics = _metrics_given(batches)
    return View(
        **dict(result),
        **selection(result.schemes, METRICS[metrics[0]][0] if scheme is None else scheme),
        optimised=inputs.optimised,
        metrics=metrics,
        ranks=len(batches.sizes),
        batches=sum(batches.sizes),
        rows=_rows(batches),
        boxes=_boxes(batches) if "loss" in batches.given else [],
    )


def _metrics_given(batches: Batches) -> list[Metric]:
    """What there are numbers of; losses too where there are no others."""
    given: list[Metric] = []
    if batches.given & set(LOSSES):
        given += ["loss", "perplexity"]
    if batches.given & set(ACCURACY):
        given.append("accuracy")
    if batches.given & set(F1):
        given.append("f1")
    return given or ["loss", "perplexity"]


def _result(batches: Batches, inputs: Inputs) -> Result:
    found = _outcomes(batches, inputs.empty)
    optimised = found["loss"][inputs.optimised]
    schemes: dict[SchemeName, SchemeResult] = {
        name: _judged(metric, outcome, outcomes[METRICS[metric][0]], optimised)
        for metric, outcomes in found.items()
        for name, outcome in outcomes.items()
    }
    return Result(
        count=batches.count,
        repeated=batches.repeated,
        log_perplexity=schemes["token_mean"].value,
        schemes=schemes,
    )


def _outcomes(batches: Batches, empty: Empty) -> dict[Metric, dict[SchemeName, Outcome]]:
    losses = _losses(batches, empty)
    found: dict[Metric, dict[SchemeName, Outcome]] = {
        "loss": losses,
        "perplexity": _perplexities(batches, losses, empty),
    }
    if batches.given & set(ACCURACY):
        found["accuracy"] = {
            "accuracy_pooled": pooled(batches.new_right),
            "accuracy_with_repeats": pooled(batches.right),
            "accuracy_mean_of_batches": Entries.of(batches.right).averaged(empty),
            "accuracy_mean_of_ranks": Entries.of(batches.ranks_of(batches.right)).averaged(empty),
        }
    if batches.given & set(F1):
        found["f1"] = {
            "f1_pooled": pooled(batches.f1),
            "f1_mean_of_batches": Entries.of(batches.f1).averaged(empty),
            "f1_mean_of_ranks": Entries.of(batches.ranks_of(batches.f1)).averaged(empty),
        }
    return found


def _losses(batches: Batches, empty: Empty) -> dict[SchemeName, Outcome]:
    of_batches, of_ranks = batches.losses, batches.ranks_of(batches.losses)
    return {
        "token_mean": pooled(batches.new_losses),
        "token_mean_with_repeats": pooled(of_batches),
        "mean_of_batch_means": Entries.of(of_batches).averaged(empty),
        "mean_of_rank_means": Entries.of(of_ranks).averaged(empty),
        "mean_of_rank_batch_means": of_ranks_own_batches(batches, of_batches, empty),
        "sum_of_rank_means": Entries.of(of_ranks).added(empty),
        "sum_of_batch_means": Entries.of(of_batches).added(empty),
        "rank_zero": first(of_ranks, empty),
    }


def _perplexities(batches: Batches, losses: dict[SchemeName, Outcome], empty: Empty) -> dict[SchemeName, Outcome]:
    of_batches, of_ranks, right = batches.losses, batches.ranks_of(batches.losses), losses["token_mean"]

    def of_mean(name: SchemeName) -> Outcome:
        log = losses[name]
        found = exponential(log)
        known = log.value is not None and right.value is not None
        return Outcome(found.value, found.reason, known and same(log.value, right.value))

    return {
        "perplexity_of_token_mean": of_mean("token_mean"),
        "perplexity_of_batch_mean": of_mean("mean_of_batch_means"),
        "perplexity_of_rank_mean": of_mean("mean_of_rank_means"),
        "mean_of_batch_perplexities": mean_exponential(of_batches, right, empty),
        "mean_of_rank_perplexities": mean_exponential(of_ranks, right, empty),
        "token_weighted_perplexity": weighted_exponential(of_batches, right),
    }


def _judged(metric: Metric, outcome: Outcome, right: Outcome, optimised: Outcome) -> SchemeResult:
    defined = outcome.value is not None
    equal = outcome.equals_right
    if equal is None:
        equal = defined and right.value is not None and same(outcome.value, right.value)
    return SchemeResult(
        metric=metric,
        defined=defined,
        reason=(right.reason or "zero_reference") if defined and not right.value else outcome.reason,
        matches_reference=defined and equal,
        value=as_float(outcome.value),
        value_exact=as_text(outcome.value),
        ratio_to_reference=_ratio(outcome, right),
        over_optimised=_ratio(outcome, optimised) if metric == "loss" else None,
    )


def _ratio(outcome: Outcome, reference: Outcome) -> float | None:
    if outcome.value is None or not reference.value:
        return None
    ratio: float = as_float(outcome.value / reference.value)
    return ratio


def _rows(batches: Batches) -> list[RankRow]:
    levels = {name: batches.ranks_of(level) for name, level in (("loss", batches.losses), ("right", batches.right))}
    losses, right, f1 = (_values(level) for level in (*levels.values(), batches.ranks_of(batches.f1)))
    repeats = batches.by_rank(batches.columns["repeated_n"])
    return [
        RankRow(
            rank=r,
            batches=batches.sizes[r],
            items=int(levels["loss"].mass[r]),
            repeats=int(repeats[r]),
            loss=losses[r],
            perplexity=_power(losses[r]),
            accuracy=right[r] if batches.given & set(ACCURACY) else None,
            f1=f1[r] if batches.given & set(F1) else None,
        )
        for r in range(min(len(batches.sizes), SHOWN_RANKS))
    ]


def _boxes(batches: Batches) -> list[Batch]:
    places = ((r, b) for r, size in enumerate(batches.sizes) for b in range(size))
    columns = (batches.columns[name][:SHOWN_BATCHES] for name in ("n", "loss"))
    return [
        Batch(rank=r, batch=b, n=int(n), loss=as_float(loss)) for (r, b), n, loss in zip(places, *columns, strict=False)
    ]


def _values(level: Level) -> Sequence[float | None]:
    entries = Entries.of(Level(level.sums[:SHOWN_RANKS], level.mass[:SHOWN_RANKS]))
    return [float(value) if filled else None for value, filled in zip(entries.values, entries.filled, strict=True)]


def _power(log: float | None) -> Any:
    found = exponential(Outcome(log))
    return finite_or_name(float("inf")) if found.reason == "non_finite" else found.value
