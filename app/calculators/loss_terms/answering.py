"""The terms under every recipe, put together as the answer has it."""

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from samestep.app.calculators.loss_terms.inputs import Loss
from samestep.app.calculators.loss_terms.recipes import RECIPES, RecipeName
from samestep.app.calculators.loss_terms.results import (
    PenaltyName,
    PenaltyResult,
    Reference,
    Result,
    SchemeResult,
    TermResult,
)
from samestep.app.calculators.loss_terms.weighing import Number, Scales, Weighed
from samestep.app.contract.models import Reason
from samestep.app.mathematics.window import as_float, as_text, exact_sum


def answered(loss: Loss, mixed: dict[str, list[RecipeName]]) -> Result:
    """Every recipe on every term, and the schemes that mix them."""
    terms = [Scales(loss, term) for term in loss.terms]
    penalties = exact_sum(one.coefficient * one.value for one in loss.penalties)
    reference = _reference(loss, terms, penalties)
    recipes: dict[str, list[RecipeName]] = {name: [name] * len(terms) for name in RECIPES}
    recipes |= mixed
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
