"""Several terms in one loss, each with its own units: what every term weighs after accumulation and DDP.

Words and symbols: term t has the coefficient c_t and, in the cell of replica r and microstep k, n_rk units (tokens,
sequences, pairs) whose losses add up to S_rk; N_t = Σ n_rk. The reference is the sum of the terms' own means,

    Σ_t c_t · ΣS_t / N_t  +  Σ penalties        (a term without units is a penalty c·value, counted once)

and a scheme is a recipe of `recipes` for every term, the same for all or one each (`mixed`). The reduced loss is linear
in the losses of the units; what one of them weighs is the answer, and 1/N_t times c_t is right. A `multiple` of 1
with weights that are not `uniform` is still another objective. Penalties enter every scheme once; what becomes of them
elsewhere is `penalty`: P and K multiply what is added in every replica or microstep and not divided again.
"""

from collections.abc import Iterator
from fractions import Fraction
from typing import Annotated, Any

from pydantic import Field, model_validator

from samestep.app.calculators.loss_terms.inputs import Loss, Term, loss_of
from samestep.app.calculators.loss_terms.recipes import RECIPES, RecipeName
from samestep.app.calculators.loss_terms.results import (
    PenaltyName,
    PenaltyResult,
    Reference,
    Result,
    SchemeResult,
    TermResult,
    View,
)
from samestep.app.calculators.loss_terms.weighing import Number, Scales, Weighed
from samestep.app.contract.errors import InputError
from samestep.app.contract.fields import JSON, OptionalRankRows, OrBlank, RankRows, Real
from samestep.app.contract.models import Inputs as InputsBase, Query as QueryBase, Reason, chosen
from samestep.app.contract.rows import numbers_in_json
from samestep.app.mathematics.window import as_float, as_text, exact_sum

MAX_TERMS = 64


class Mixed(InputsBase):
    """A scheme of one's own: a recipe for each term with units, in their order."""

    name: str = Field(min_length=1, max_length=64)
    recipes: list[RecipeName]


class Inputs(InputsBase):
    """The terms of the loss, and schemes that mix recipes."""

    terms: Annotated[list[Term], JSON] = Field(
        default=[
            Term(name="main", counts=[[8], [8]], sums=[[16], [24]]),
            Term(name="second", coefficient=Fraction(1, 10), counts=[[2048], [2048]], sums=[[4096], [6144]]),
        ],
        min_length=1,
        max_length=MAX_TERMS,
        examples=[[{"name": "main", "counts": [[8], [8]], "sums": [[16], [24]]}]],
    )
    mixed: Annotated[list[Mixed], JSON] = Field(default=[], max_length=MAX_TERMS)

    @model_validator(mode="after")
    def _fits(self) -> "Inputs":
        _distinct([term.name for term in self.terms], "terms", set())
        _distinct([one.name for one in self.mixed], "mixed", set(RECIPES))
        counted = sum(term.value is None for term in self.terms)
        for i, one in enumerate(self.mixed):
            if len(one.recipes) != counted:
                en = f"need one recipe for each term with units: {counted}; there are {len(one.recipes)}"
                zh = f"有单位的项每项要一种写法，共 {counted} 种；现在有 {len(one.recipes)} 种"
                raise InputError(en, zh, field=("mixed", i, "recipes"), code="shape_mismatch")
        return self


def _distinct(names: list[str], field: str, taken: set[str]) -> None:
    for i, name in enumerate(names):
        if name in taken:
            raise InputError(f"“{name}” is taken", f"“{name}”已经用过", field=(field, i, "name"), code="duplicate")
        taken = taken | {name}


class Query(QueryBase):
    """The panel: a main term, a second one with units of its own (or blank), and the value of a term without units."""

    counts: RankRows = Field(default="8;8", validate_default=True)
    sums: RankRows = Field(default="16;24", validate_default=True)
    second_counts: OptionalRankRows = Field(default="2048;2048", validate_default=True)
    second_sums: OptionalRankRows = Field(default="4096;6144", validate_default=True)
    coefficient: Real = Fraction(1, 10)
    penalty: Annotated[Real | None, OrBlank] = None
    scheme: RecipeName = "first_terms_count"

    def inputs(self) -> Inputs:
        """The body that these fields stand for; InputError by the names of these fields where they do not fit."""
        terms = [Term(name="main", counts=numbers_in_json(self.counts), sums=numbers_in_json(self.sums))]
        if (self.second_counts is None) != (self.second_sums is None):
            missing, there = ("second_counts", "second_sums")[:: 1 if self.second_counts is None else -1]
            raise InputError(
                f"are needed together with {there}", f"须与 {there} 一起给出", field=missing, code="missing"
            )
        if self.second_counts is not None and self.second_sums is not None:
            counts, sums = numbers_in_json(self.second_counts), numbers_in_json(self.second_sums)
            terms.append(Term(name="second", coefficient=self.coefficient, counts=counts, sums=sums))
        if self.penalty is not None:
            terms.append(Term(name="penalty", value=self.penalty))
        try:
            loss_of(terms)
        except InputError as error:
            raise _in_panel(error) from None
        return Inputs(terms=terms)


def _in_panel(error: InputError) -> InputError:
    """A term's refusal by the names that the panel has, its place in words."""
    _, term, name, *place = error.field
    field = f"second_{name}" if term else str(name)
    if not place:
        return InputError(error.en, error.zh, field, error.code)
    r, k = (int(step) for step in place)
    en, zh = f"row {r + 1}, value {k + 1} {error.en}", f"第 {r + 1} 行第 {k + 1} 个值{error.zh}"
    return InputError(en, zh, field, error.code, (r, k))


def compute(inputs: Inputs) -> Result:
    """Every recipe on every term; InputError where counts and sums do not fit together."""
    return _result(inputs, loss_of(inputs.terms))


def present(inputs: Inputs, scheme: str | None = None) -> View:
    """What is shown of a body, with one of its schemes selected: the right one, unless `scheme` names another."""
    loss = loss_of(inputs.terms)
    result = _result(inputs, loss)
    selected = chosen(result.schemes, scheme)
    once = result.penalty["once"].value if loss.penalties else None
    names = [one.name for one in loss.penalties]
    return View(
        **dict(result), selected=selected, current=result.schemes[selected], penalty_names=names, penalties=once
    )


def _result(inputs: Inputs, loss: Loss) -> Result:
    terms = [Scales(loss, term) for term in loss.terms]
    penalties = exact_sum(one.coefficient * one.value for one in loss.penalties)
    reference = _reference(loss, terms, penalties)
    recipes: dict[str, list[RecipeName]] = {name: [name] * len(terms) for name in RECIPES}
    recipes |= {one.name: one.recipes for one in inputs.mixed}
    known = {(i, name): terms[i].weighed(name) for i, name in {*_pairs(recipes)}}
    listed = {pair: _term(weighed, loss) for pair, weighed in known.items()}
    return Result(
        replicas=loss.shape[0],
        microsteps=loss.shape[1],
        names=[term.name for term in loss.terms],
        coefficients=[float(term.coefficient) for term in loss.terms],
        counts=[term.units.total for term in terms],
        reference=Reference(
            defined=reference is not None,
            reason="zero_count" if reference is None else None,
            value=as_float(reference),
            value_exact=as_text(reference),
            means=[as_float(term.mean) for term in terms],
            means_exact=[as_text(term.mean) for term in terms] if loss.is_exact else None,
        ),
        schemes={
            name: _scheme(
                chosen_recipes,
                [known[pair] for pair in enumerate(chosen_recipes)],
                [listed[pair] for pair in enumerate(chosen_recipes)],
                penalties,
                reference,
            )
            for name, chosen_recipes in recipes.items()
        },
        penalty=_penalty_ways(loss, terms[0].units.total, penalties),
    )


def _pairs(recipes: dict[str, list[RecipeName]]) -> Iterator[tuple[int, RecipeName]]:
    for names in recipes.values():
        yield from enumerate(names)


def _reference(loss: Loss, terms: list[Scales], penalties: Fraction) -> Number | None:
    """None where nothing is to be minimised: no units and no penalties."""
    parts = [(term.term.coefficient, term.mean) for term in terms]
    if not loss.penalties and all(mean is None for _, mean in parts):
        return None
    if loss.is_exact:
        return penalties + sum(c * Fraction(mean) for c, mean in parts if mean is not None)
    return float(penalties) + sum(float(c) * float(mean) for c, mean in parts if mean is not None)


def _term(weighed: Weighed | Reason, loss: Loss) -> TermResult:
    if isinstance(weighed, str):
        return TermResult(defined=False, reason=weighed)
    multiple = weighed.multiple if weighed.coefficient else None
    reason: Reason | None = "zero_reference" if multiple is None else None
    return TermResult(
        defined=True,
        reason=reason if weighed.units else "zero_count",
        weights=_rows(as_float(weighed.weights), loss),
        weights_exact=_rows(as_text(weighed.weights), loss),
        total_weight=as_float(weighed.total),
        total_weight_exact=as_text(weighed.total),
        multiple=as_float(multiple),
        multiple_exact=as_text(multiple),
        uniform=weighed.uniform,
        value=as_float(weighed.value),
        value_exact=as_text(weighed.value),
    )


def _rows(cells: list[Any] | None, loss: Loss) -> list[list[Any]] | None:
    width = loss.shape[1]
    return None if cells is None else [cells[start : start + width] for start in range(0, len(cells), width)]


def _scheme(
    recipes: list[RecipeName],
    terms: list[Weighed | Reason],
    listed: list[TermResult],
    penalties: Fraction,
    reference: Number | None,
) -> SchemeResult:
    reason = next((term for term in terms if isinstance(term, str)), None)
    weighed = [term for term in terms if not isinstance(term, str)]
    value: Number | None = None
    if reason is None and reference is None:
        reason = "zero_count"
    elif reason is None:
        parts = [term.value for term in weighed]
        value = sum(parts, penalties if isinstance(reference, Fraction) else float(penalties))
    ratio = None if value is None or not reference else value / reference
    return SchemeResult(
        defined=value is not None,
        reason="zero_reference" if value is not None and ratio is None else reason,
        value=as_float(value),
        value_exact=as_text(value),
        matches_reference=value is not None and all(term.right for term in weighed),
        ratio_to_reference=as_float(ratio),
        recipes=list(recipes),
        terms=listed,
    )


def _penalty_ways(loss: Loss, first_total: int, penalties: Fraction) -> dict[PenaltyName, PenaltyResult]:
    replicas, microsteps = map(Fraction, loss.shape)
    ways: dict[PenaltyName, Fraction | None] = {
        "once": Fraction(1),
        "every_microstep_divided_by_K": Fraction(1),
        "every_microstep_then_ddp_mean": microsteps,
        "every_replica_then_sum": replicas,
        "every_microstep_then_sum": replicas * microsteps,
        "inside_the_global_count": replicas * microsteps / first_total if first_total else None,
    }
    return {name: _penalty_way(multiple, penalties) for name, multiple in ways.items()}


def _penalty_way(multiple: Fraction | None, penalties: Fraction) -> PenaltyResult:
    value = None if multiple is None else multiple * penalties
    return PenaltyResult(
        defined=multiple is not None,
        reason="zero_count" if multiple is None else None,
        multiple=as_float(multiple),
        multiple_exact=as_text(multiple),
        value=as_float(value),
        value_exact=as_text(value),
        matches_reference=multiple == 1,
    )
