"""What every token and every sequence weighs in the objective, and whether dealing the sequences otherwise changes it.

Words and symbols: a window is one update, P replicas × K microsteps; cell (r, k) holds B_rk sequences with T_rk tokens
(labels) together, sequence i has L_i of them. Four objectives, written for one group of cells (B sequences, T tokens):

    token_mean        Σ ℓ / T                        every token alike: `CrossEntropyLoss`'s mean; DAPO
    sequence_mean     (1/B)·Σ_i (1/L_i)·Σ_t ℓ_it     every sequence alike: GRPO
    constant          (1/B)·Σ_i (1/C)·Σ_t ℓ_it       a fixed number C in place of L_i: Dr. GRPO
    sample_weighted   Σ_cells (B_rk/B)·(Σ ℓ / T_rk)  a token mean of each microbatch, weighed by its sequences: what
                                                     Composer 0.32 does by default, over a replica

and four placements of the mean: over the whole window, over each replica, over each microstep of all replicas, over
each microbatch (one cell), the groups then averaged (DDP's mean over P, accumulation's mean over K). The reduced
objective is linear in the token losses, Σ w_it·ℓ_it, and the weight w_it is the answer; a sequence weighs L_i times as
much. The means over nothing that empty cells make are undefined.

`stability` says whether the weights are those of every other partition: the one given as `other`, if any, and those of
`Partition.others`, none with an empty cell. Over the window the first three depend on the sequences only, so that they
are invariant under all partitions whatever. Sources are listed in the chapter on batch noise.

Shapes: whole numbers of tokens; weights are float64, with exact fractions up to MAX_EXACT_SEQUENCES.
"""

from fractions import Fraction
from itertools import product
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import Field

from samestep.app.calculators.objective_weights.cells import MAX_LENGTH, OptionalSequences, Sequences
from samestep.app.calculators.objective_weights.compared import ComparedWindow, Counterexample, Tried, tried
from samestep.app.calculators.objective_weights.names import NAMES, Name
from samestep.app.calculators.objective_weights.partition import (
    OBJECTIVES,
    PLACEMENTS,
    Ints,
    Objective,
    Partition,
    Placement,
)
from samestep.app.calculators.objective_weights.weights import TokenWeights
from samestep.app.contract import models
from samestep.app.contract.fields import whole_number
from samestep.app.contract.limits import MAX_LISTED_CELLS
from samestep.app.contract.numbers import fraction_text
from samestep.app.contract.tables import TableForm, in_cells

MAX_EXACT_SEQUENCES = 256
"""Up to this many sequences all schemes carry exact fractions."""
MAX_ROWS = 256
"""A panel lists so many sequences."""

Constant = Annotated[int, whole_number(1, MAX_LENGTH)]
Stability = Literal["invariant", "changes"]
SchemeName = Literal[
    "token_mean_over_window",
    "token_mean_over_replica",
    "token_mean_over_microstep",
    "token_mean_over_microbatch",
    "sequence_mean_over_window",
    "sequence_mean_over_replica",
    "sequence_mean_over_microstep",
    "sequence_mean_over_microbatch",
    "constant_over_window",
    "constant_over_replica",
    "constant_over_microstep",
    "constant_over_microbatch",
    "sample_weighted_over_window",
    "sample_weighted_over_replica",
    "sample_weighted_over_microstep",
    "sample_weighted_over_microbatch",
]
SCHEMES: dict[SchemeName, tuple[Objective, Placement]] = dict(
    zip(get_args(SchemeName), product(OBJECTIVES, PLACEMENTS), strict=True)
)


class Inputs(models.Inputs):
    """Lengths of sequences, `sequences[replica][microstep]` each a list; the same in other cells, to compare with; the
    constant C."""

    sequences: Sequences = Field(examples=[[[[4, 2]], [[8]]]])
    other: OptionalSequences = Field(default=None, examples=[[[[4]], [[2, 8]]]])
    constant: Constant = 1

    tables: ClassVar = (
        TableForm(
            columns=("rank", "length"),
            optional=("microstep",),
            read=lambda columns: {
                "sequences": [[[line["length"] for line in cell] for cell in row] for row in in_cells(columns)]
            },
        ),
    )


class Query(Inputs, models.Query):
    """The panel: the body's fields with sequences of its own, and the mean that is looked at."""

    sequences: Sequences = Field(default="4+2;8", validate_default=True)
    constant: Constant = 8
    scheme: SchemeName = "token_mean_over_replica"


class SchemeResult(models.Result):
    """One objective with its mean in one place. Lists have one entry a sequence; null above MAX_LISTED_CELLS, the exact
    ones above MAX_EXACT_SEQUENCES.

    `names` are what TRL and verl call it, and in which releases. `equals` are the objectives that over the window give
    the same weights: what this mean really is, here.
    """

    objective: Objective
    placement: Placement
    names: tuple[Name, ...]
    defined: bool
    reason: models.Reason | None
    token_weights: list[float] | None
    token_weights_exact: list[str] | None
    sequence_weights: list[float] | None
    sequence_weights_exact: list[str] | None
    total: float | None = Field(description="sum of the weights of all tokens")
    equals: list[Objective]
    stability: Stability | None
    counterexample: Counterexample | None


class Result(models.Result):
    """All objectives in all places."""

    replicas: int
    microsteps: int
    sequence_count: int
    tokens: int
    constant: int
    lengths: list[int] | None
    partitions: list[Tried]
    schemes: dict[SchemeName, SchemeResult]

    def tables(self) -> list[models.Table]:
        """One row a scheme, then one a sequence with its token weight in every scheme."""
        header = ("objective", "placement", "names", "defined", "reason", "total", "equals", "stability", "changed_by")
        rows = [
            (
                s.objective,
                s.placement,
                "; ".join(map(str, s.names)),
                s.defined,
                s.reason,
                s.total,
                " ".join(s.equals),
                s.stability,
                _cause(s),
            )
            for s in self.schemes.values()
        ]
        weights = [scheme.token_weights for scheme in self.schemes.values()]
        by_sequence = [
            (i, length, *(None if column is None else column[i] for column in weights))
            for i, length in enumerate(self.lengths or [])
        ]
        return [
            models.Table(header=header, rows=rows),
            models.Table(header=("sequence", "length", *self.schemes), rows=by_sequence),
        ]


def _cause(scheme: SchemeResult) -> str | None:
    found = scheme.counterexample
    return None if found is None else found.cells or found.partition


class Row(models.Result):
    """One sequence: the chosen mean's weights, those of the same objective over the window, and in `compared` cells."""

    sequence: int
    replica: int
    microstep: int
    length: int
    token_weight: float | None
    token_weight_exact: str | None
    sequence_weight: float | None
    sequence_weight_exact: str | None
    window_token_weight: float | None
    window_token_weight_exact: str | None
    compared_token_weight: float | None
    compared_token_weight_exact: str | None
    reason: models.Reason | None


class View(Result):
    """What the panel shows: the chosen scheme, the first MAX_ROWS sequences, and the partition `compared` beside the
    given one: `other`, else one that changes a weight, else any."""

    selected: SchemeName
    current: SchemeResult
    compared: Tried | None
    rows: list[Row]


def compute(inputs: Inputs) -> Result:
    """Every objective in every place; InputError where `other` holds other sequences."""
    return _result(ComparedWindow(inputs.sequences, inputs.other, inputs.constant))


def _result(window: ComparedWindow) -> Result:
    given = window.given
    count = len(given.lengths)
    over_window = {name: window.weights(given, name, "window") for name in OBJECTIVES}
    return Result(
        replicas=given.replicas,
        microsteps=given.microsteps,
        sequence_count=count,
        tokens=int(given.lengths.sum()),
        constant=window.constant,
        lengths=given.lengths.tolist() if count <= MAX_LISTED_CELLS else None,
        partitions=list(map(tried, window.compared)),
        schemes={
            name: _scheme(window, objective, placement, over_window) for name, (objective, placement) in SCHEMES.items()
        },
    )


def _scheme(
    window: ComparedWindow,
    objective: Objective,
    placement: Placement,
    over_window: dict[Objective, TokenWeights | None],
) -> SchemeResult:
    lengths = window.given.lengths
    weights = window.weights(window.given, objective, placement)
    floats = None if weights is None else weights.floats()
    exact = None
    if weights is not None and len(lengths) <= MAX_EXACT_SEQUENCES:
        exact = [weights.exactly(i) for i in range(len(lengths))]
    listed = floats if len(lengths) <= MAX_LISTED_CELLS else None
    found = window.counterexample(objective, placement)
    empty: models.Reason = "empty_cell" if len(lengths) else "zero_count"
    return SchemeResult(
        objective=objective,
        placement=placement,
        names=NAMES.get((objective, placement), ()),
        defined=weights is not None,
        reason=empty if weights is None else None,
        token_weights=None if listed is None else listed.tolist(),
        token_weights_exact=None if exact is None else list(map(fraction_text, exact)),
        sequence_weights=None if listed is None else (listed * lengths).tolist(),
        sequence_weights_exact=None if exact is None else _times(exact, lengths),
        total=None if floats is None else float((floats * lengths).sum()),
        equals=[name for name, other in over_window.items() if weights and other and weights.same_as(other)],
        stability=None if not len(lengths) else "changes" if found else "invariant",
        counterexample=found,
    )


def _times(weights: list[Fraction], lengths: Ints) -> list[str]:
    return [fraction_text(weight * length) for weight, length in zip(weights, lengths.tolist(), strict=True)]


def present(inputs: Inputs, scheme: str | None = None) -> View:
    """What is shown of a body, with one of the means selected: the first, unless `scheme` names another."""
    selected = models.chosen(SCHEMES, scheme)
    window = ComparedWindow(inputs.sequences, inputs.other, inputs.constant)
    result, beside = _result(window), window.shown(*SCHEMES[selected])
    return View(
        **dict(result),
        selected=selected,
        current=result.schemes[selected],
        compared=None if beside is None else tried(beside),
        rows=_rows(window, beside, *SCHEMES[selected]),
    )


def _rows(window: ComparedWindow, beside: Partition | None, objective: Objective, placement: Placement) -> list[Row]:
    given = window.given
    shown = range(min(len(given.lengths), MAX_ROWS))
    missing: list[Fraction | None] = [None] * len(shown)
    here, whole, there = (
        missing if weights is None else [weights.exactly(i) for i in shown]
        for weights in (
            window.weights(given, objective, placement),
            window.weights(given, objective, "window"),
            None if beside is None else window.weights(beside, objective, placement),
        )
    )
    return [
        Row(
            sequence=i,
            replica=int(given.cell[i]) // given.microsteps,
            microstep=int(given.cell[i]) % given.microsteps,
            length=int(given.lengths[i]),
            **_both("token_weight", here[i]),
            **_both("sequence_weight", here[i], int(given.lengths[i])),
            **_both("window_token_weight", whole[i]),
            **_both("compared_token_weight", there[i]),
            reason="empty_cell" if here[i] is None else None,
        )
        for i in shown
    ]


def _both(name: str, weight: Fraction | None, times: int = 1) -> dict[str, Any]:
    """A weight as float and as exact fraction."""
    if weight is None:
        return {name: None, f"{name}_exact": None}
    return {name: float(weight * times), f"{name}_exact": fraction_text(weight * times)}
