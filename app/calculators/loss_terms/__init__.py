"""Several terms in one loss, each with its own units: what every term weighs after accumulation and DDP.

Words and symbols: term t has the coefficient c_t and, in the cell of replica r and microstep k, n_rk units (tokens,
sequences, pairs) whose losses add up to S_rk; N_t = Σ n_rk. The reference is the sum of the terms' own means,

    Σ_t c_t · ΣS_t / N_t  +  Σ penalties        (a term without units is a penalty c·value, counted once)

and a scheme is a recipe of `recipes` for every term, the same for all or one each (`mixed`). The reduced loss is linear
in the losses of the units; what one of them weighs is the answer, and 1/N_t times c_t is right. A `multiple` of 1
with weights that are not `uniform` is still another objective. Penalties enter every scheme once; what becomes of them
elsewhere is `penalty`: P and K multiply what is added in every replica or microstep and not divided again.
"""

from fractions import Fraction
from typing import Annotated, ClassVar

from pydantic import Field, model_validator

from samestep.app.calculators.loss_terms.answering import answered
from samestep.app.calculators.loss_terms.inputs import Term, loss_of
from samestep.app.calculators.loss_terms.recipes import RECIPES, RecipeName
from samestep.app.calculators.loss_terms.results import Result, View
from samestep.app.calculators.loss_terms.tables import TABLES
from samestep.app.contract.errors import InputError
from samestep.app.contract.fields import JSON, OptionalRankRows, OrBlank, RankRows, Real
from samestep.app.contract.models import Inputs as InputsBase, Query as QueryBase, selection
from samestep.app.contract.rows import numbers_in_json

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

    tables: ClassVar = TABLES

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
    return answered(loss_of(inputs.terms), _mixed(inputs))


def present(inputs: Inputs, scheme: str | None = None) -> View:
    """What is shown of a body, with one of its schemes selected: the right one, unless `scheme` names another."""
    loss = loss_of(inputs.terms)
    result = answered(loss, _mixed(inputs))
    once = result.penalty["once"].value if loss.penalties else None
    names = [one.name for one in loss.penalties]
    return View(**dict(result), **selection(result.schemes, scheme), penalty_names=names, penalties=once)


def _mixed(inputs: Inputs) -> dict[str, list[RecipeName]]:
    return {one.name: one.recipes for one in inputs.mixed}
