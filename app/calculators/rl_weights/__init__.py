"""What every token of a sampled completion weighs in a reinforcement-learning loss, and its advantage, on these ranks.

Words and symbols: an update is P ranks × K microsteps of completions; completion i has L_i tokens, belongs to a prompt
group, and may have a reward R_i. B is the number of completions, N that of tokens, C a constant; B_rk and T_rk are
those of one cell. The reduced loss is linear in the losses of tokens, Σ w_it·ℓ_it, and w_it is the answer: what TRL's
`loss_type` and verl's `loss_agg_mode` make of it after accumulation and the mean over ranks (see `weights`), beside the
objective that each stands for, which no partition changes. `advantages` are taken over the group, and over as much of
the group as one rank or microbatch has.

Out of scope: ratios, clipping, KL, entropy; on policy GSPO (loss_type grpo, sequence-level ratio) has trl_grpo's
weights. TRL's cispo multiplies by its clipped ratio, see the chapter. Sources: TRL 1.10.0.dev0 and verl 0.10.0.dev,
whose pull requests 5366 and 5417 changed the norm mode.
"""

from fractions import Fraction
from math import gcd
from typing import Annotated, Any, ClassVar

from pydantic import Field

from samestep.app.calculators.rl_weights.advantages import Scaling, Scope, advantages, scopes
from samestep.app.calculators.rl_weights.rollout import (
    MAX_TOKENS,
    CellsText,
    Completions,
    OptionalCellsText,
    Rollout,
    completions_of,
    rollout_of,
)
from samestep.app.calculators.rl_weights.weights import (
    OBJECTIVES,
    SCHEMES,
    Given,
    ObjectiveName,
    Rule,
    SchemeName,
    Weights,
)
from samestep.app.contract import models
from samestep.app.contract.fields import NonNegative, OrBlank, Positive, whole_number
from samestep.app.contract.limits import MAX_CELLS, MAX_LISTED_CELLS
from samestep.app.contract.numbers import fraction_text
from samestep.app.contract.tables import TableForm, in_cells
from samestep.app.mathematics.window import exact_sum

MAX_ROWS = 256
"""A panel lists so many completions."""

Counted = Annotated[int, whole_number(0, MAX_TOKENS)]
Generations = Annotated[int, whole_number(1, MAX_CELLS)]

_EXAMPLE: Any = [[[{"length": 10, "group": 0}, {"length": 10, "group": 0}]], [[{"length": 100, "group": 1}]]]


class Inputs(models.Inputs):
    """Completions by rank and microstep; the constant C; the tokens that TRL counted in its generation batch, where
    that is not this window; how many consecutive completions `view` takes for a group; how rewards are scaled."""

    completions: Completions = Field(examples=[_EXAMPLE])
    constant: Positive = Field(default=Fraction(1), examples=[400])
    counted_tokens: Annotated[Counted | None, OrBlank] = None
    generations: Annotated[Generations | None, OrBlank] = None
    scale_rewards: Scaling = "group"
    eps: NonNegative = Field(default=Fraction(1, 10_000), examples=["0.0001"])

    tables: ClassVar = (
        TableForm(
            columns=("rank", "length", "group"),
            optional=("microstep", "reward"),
            read=lambda columns: {"completions": in_cells(columns)},
        ),
    )


class Query(models.Query):
    """The panel: completions as rows of cells, and the name that is looked at."""

    lengths: CellsText = Field(default="10+10;100+300", validate_default=True)
    groups: CellsText = Field(default="0+0;1+1", validate_default=True)
    rewards: OptionalCellsText = None
    constant: Positive = Fraction(400)
    counted_tokens: Annotated[Counted | None, OrBlank] = None
    generations: Annotated[Generations | None, OrBlank] = None
    scale_rewards: Scaling = "group"
    eps: NonNegative = Fraction(1, 10_000)
    scheme: SchemeName = "trl_bnpo"

    def inputs(self) -> Inputs:
        """The body that these fields stand for."""
        fields = {name: getattr(self, name) for name in Inputs.model_fields if name != "completions"}
        return Inputs(completions=completions_of(self.lengths, self.groups, self.rewards), **fields)  # type: ignore[arg-type]


class ObjectiveResult(models.Result):
    """Weights of tokens and of whole completions, in order of ranks, microsteps and cells.

    Lists are null above MAX_LISTED_CELLS completions, the exact ones above MAX_EXACT_CELLS; all are null where a mean
    is taken over nothing, as `reason` says.
    """

    defined: bool
    reason: models.Reason | None
    token_weights: list[float] | None
    token_weights_exact: list[str] | None
    sequence_weights: list[float] | None
    sequence_weights_exact: list[str] | None
    total: float | None = Field(description="weights of all tokens together")
    total_exact: str | None


class SchemeResult(ObjectiveResult):
    """What a name divides by, and whether that is the objective that it stands for; null where either is undefined."""

    objective: ObjectiveName
    matches_reference: bool | None


class Result(models.Result):
    """All names, the objectives, and the advantages where rewards are given (null above MAX_LISTED_CELLS completions).

    An advantage is null where a deviation of 0 is divided by (`zero_variance`, only with eps 0); `by_view` is there
    where `generations` divides the number of completions.
    """

    ranks: int
    microsteps: int
    completions: int
    tokens: int
    groups: int
    constant: float
    counted_tokens: int
    schemes: dict[SchemeName, SchemeResult]
    objectives: dict[ObjectiveName, ObjectiveResult]
    advantages: dict[Scope, list[float | None]] | None
    advantages_reason: models.Reason | None

    def tables(self) -> list[models.Table]:
        """One row a name, then one a completion with its token weight under every name, then its advantages."""
        header = ("scheme", "objective", "defined", "reason", "total", "matches_reference")
        rows = [
            (name, s.objective, s.defined, s.reason, s.total, s.matches_reference) for name, s in self.schemes.items()
        ]
        columns = {name: s.token_weights for name, s in self.schemes.items() if s.token_weights is not None}
        columns |= {name: o.token_weights for name, o in self.objectives.items() if o.token_weights is not None}  # type: ignore[misc]
        tables = [models.Table(header=header, rows=rows)]
        tables.append(models.Table(header=("completion", *columns), rows=_numbered(list(columns.values()))))
        if self.advantages:
            tables.append(
                models.Table(header=("completion", *self.advantages), rows=_numbered(list(self.advantages.values())))
            )
        return tables


def _numbered(columns: list[Any]) -> list[tuple[Any, ...]]:
    return [(i, *row) for i, row in enumerate(zip(*columns, strict=True))]


class Row(models.Result):
    """One completion: where it is, what its tokens weigh under the chosen name and its objective, its advantages."""

    completion: int
    rank: int
    microstep: int
    group: int
    length: int
    token_weight: float | None
    token_weight_exact: str | None
    sequence_weight: float | None
    sequence_weight_exact: str | None
    objective_weight: float | None
    objective_weight_exact: str | None
    advantages: dict[Scope, float | None] | None


class View(Result):
    """What the panel shows: the chosen name, and the first MAX_ROWS completions; groups numbered as they appear."""

    selected: SchemeName
    current: SchemeResult
    reference: ObjectiveResult
    rows: list[Row]


def compute(inputs: Inputs) -> Result:
    """Every name's weights; InputError names the completion that cannot be used."""
    return _result(rollout_of(inputs.completions), inputs)


def present(inputs: Inputs, scheme: str | None = None) -> View:
    """What is shown of a body, with one of the names selected: the first, unless `scheme` names another."""
    selected = models.chosen(SCHEMES, scheme)
    rollout = rollout_of(inputs.completions)
    result = _result(rollout, inputs)
    current = result.schemes[selected]
    reference = result.objectives[current.objective]
    return View(
        **dict(result),
        selected=selected,
        current=current,
        reference=reference,
        rows=_rows(rollout, current, reference, result.advantages),
    )


def _result(rollout: Rollout, inputs: Inputs) -> Result:
    counted = rollout.total if inputs.counted_tokens is None else inputs.counted_tokens
    weighed = _Weighed(Given(rollout, inputs.constant, counted))
    found: dict[Scope, list[float | None]] | None = None
    if rollout.rewards is not None:
        found = {
            name: advantages(rollout.rewards, members, scope, inputs.scale_rewards, inputs.eps)
            for name, (members, scope) in scopes(rollout, inputs.generations).items()
        }
    return Result(
        ranks=rollout.ranks,
        microsteps=rollout.microsteps,
        completions=len(rollout.lengths),
        tokens=rollout.total,
        groups=rollout.groups,
        constant=float(inputs.constant),
        counted_tokens=counted,
        schemes={
            name: SchemeResult(
                **weighed.answer(rule),
                objective=objective,
                matches_reference=weighed.alike(rule, OBJECTIVES[objective]),
            )
            for name, (objective, rule) in SCHEMES.items()
        },
        objectives={name: ObjectiveResult(**weighed.answer(rule)) for name, rule in OBJECTIVES.items()},
        advantages=found,
        advantages_reason="zero_variance" if found and any(None in values for values in found.values()) else None,
    )


class _Weighed:
    """Rules applied to one update, each once: most of verl's names are an objective themselves."""

    def __init__(self, given: Given) -> None:
        self._given = given
        self._weights: dict[Rule, Weights | None] = {}
        self._answers: dict[Rule, dict[str, Any]] = {}

    def weights(self, rule: Rule) -> Weights | None:
        """None where the rule is undefined."""
        if rule not in self._weights:
            self._weights[rule] = Weights(rule, self._given) if rule.reason(self._given.rollout) is None else None
        return self._weights[rule]

    def answer(self, rule: Rule) -> dict[str, Any]:
        """The fields of an ObjectiveResult."""
        if rule not in self._answers:
            self._answers[rule] = _answered(self.weights(rule), rule, self._given.rollout)
        return self._answers[rule]

    def alike(self, rule: Rule, objective: Rule) -> bool | None:
        mine, right = self.weights(rule), self.weights(objective)
        return None if mine is None or right is None else mine is right or mine.same_as(right)


def _answered(weights: Weights | None, rule: Rule, rollout: Rollout) -> dict[str, Any]:
    """The fields of an ObjectiveResult."""
    answer: dict[str, Any] = dict.fromkeys(ObjectiveResult.model_fields)
    if weights is None:
        return answer | {"defined": False, "reason": rule.reason(rollout)}
    floats = weights.floats()
    of_sequences = floats * rollout.lengths
    answer |= {"defined": True, "total": float(of_sequences.sum())}
    if len(floats) <= MAX_LISTED_CELLS:
        answer |= {"token_weights": floats.tolist(), "sequence_weights": of_sequences.tolist()}
    if rollout.is_exact:
        answer |= _exactly(weights.ratios(len(floats)), rollout.lengths.tolist())
    return answer


def _exactly(ratios: list[tuple[int, int]], lengths: list[int]) -> dict[str, Any]:
    sums: dict[int, int] = {}
    for (above, below), length in zip(ratios, lengths, strict=True):
        sums[below] = sums.get(below, 0) + above * length
    return {
        "token_weights_exact": [_text(*ratio) for ratio in ratios],
        "sequence_weights_exact": [
            _text(above * length, below) for (above, below), length in zip(ratios, lengths, strict=True)
        ],
        "total_exact": fraction_text(exact_sum(Fraction(above, below) for below, above in sums.items())),
    }


def _text(above: int, below: int) -> str:
    """As `fraction_text`, without a Fraction: there are two for each completion and name."""
    common = gcd(above, below)
    return str(above // common) if below == common else f"{above // common}/{below // common}"


def _rows(
    rollout: Rollout,
    current: SchemeResult,
    reference: ObjectiveResult,
    found: dict[Scope, list[float | None]] | None,
) -> list[Row]:
    def of(values: list[Any] | None, i: int) -> Any:
        return None if values is None else values[i]

    return [
        Row(
            completion=i,
            rank=int(rollout.cell[i]) // rollout.microsteps,
            microstep=int(rollout.cell[i]) % rollout.microsteps,
            group=int(rollout.labels[i]),
            length=int(rollout.lengths[i]),
            token_weight=of(current.token_weights, i),
            token_weight_exact=of(current.token_weights_exact, i),
            sequence_weight=of(current.sequence_weights, i),
            sequence_weight_exact=of(current.sequence_weights_exact, i),
            objective_weight=of(reference.token_weights, i),
            objective_weight_exact=of(reference.token_weights_exact, i),
            advantages=None if found is None else {name: values[i] for name, values in found.items()},
        )
        for i in range(min(len(rollout.lengths), MAX_ROWS))
    ]
