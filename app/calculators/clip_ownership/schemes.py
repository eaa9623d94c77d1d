"""What each way of taking the norm does to the same gradients: what is applied, and where the parameters go.

`global_owner` clips by the norm of one vector that holds every independent element once, which is right. `per_rank`
clips what a rank holds by the norm of what it holds; `every_copy` counts copies as often as they are held.
"""

from collections.abc import Mapping
from fractions import Fraction
from typing import Literal

import numpy as np

from samestep.app.calculators.clip_ownership.clipping import ClippingRule
from samestep.app.calculators.clip_ownership.copies import Copies, Counts
from samestep.app.contract.arrays import Floats
from samestep.app.contract.errors import InputError
from samestep.app.contract.models import Reason, Result
from samestep.app.contract.numbers import NonFinite, finite_or_name

Norm = float | NonFinite
SchemeName = Literal["global_owner", "per_rank", "every_copy"]

_SAME = 1e-12
"""Relative: what rounding can do to a product."""


class NamedGradient(Result):
    """The values of one copy, by the id of its gradient."""

    id: str
    grad: list[float]


class NamedParam(Result):
    """The parameters of one copy after the step."""

    id: str
    param: list[float]


class SchemeResult(Result):
    """What one scheme does. For `per_rank`, `norm` and `coefficient` have one entry a rank.

    `clipped_norm` is the norm of the independent gradient that results (owners' copies, each as its rank applies it).
    `matches_reference` says whether every copy receives the gradient that `global_owner` gives it; `keeps_direction`
    whether what is not zero is all shortened by one coefficient. When all ranks skip, these, the coefficients and
    `applied` are null and `param_after` is the parameter unchanged.
    """

    defined: bool
    reason: Reason | None
    norm: Norm | list[Norm]
    coefficient: float | list[float | None] | None
    clipped_norm: float | None
    matches_reference: bool | None
    keeps_direction: bool | None
    applied: list[list[NamedGradient]] | None
    param_after: list[list[NamedParam]] | None


def scheme_results(
    copies: Copies,
    rule: ClippingRule,
    gradient: Floats,
    norms: Mapping[SchemeName, float | list[float]],
    lr: Fraction | None,
) -> dict[SchemeName, SchemeResult]:
    """Clip by one norm, or what each rank holds by its own. Nothing is applied unless every value is finite."""
    if not np.isfinite(gradient).all():
        return {name: _skipped(copies, norm, lr) for name, norm in norms.items()}
    applied = {
        name: rule.applied(gradient, norm, copies.element_rank)
        if isinstance(norm, list)
        else rule.applied(gradient, [norm])
        for name, norm in norms.items()
    }
    clipped = rule.norms_of(*(values[copies.owned] for values in applied.values()))
    held = np.unique(copies.element_rank[gradient != 0])
    coefficients = {
        name: rule.coefficients(norm) if isinstance(norm, list) else rule.coefficient(norm)
        for name, norm in norms.items()
    }
    return {
        name: SchemeResult(
            defined=True,
            reason=None,
            norm=_shown(norm),
            coefficient=coefficients[name],
            clipped_norm=clipped_norm,
            matches_reference=_alike(applied[name], applied["global_owner"]),
            keeps_direction=_one(coefficients[name], held),
            applied=_gradients(copies, applied[name]),
            param_after=_step(copies, applied[name], lr),
        )
        for (name, norm), clipped_norm in zip(norms.items(), clipped, strict=True)
    }


def _skipped(copies: Copies, norm: float | list[float], lr: Fraction | None) -> SchemeResult:
    return SchemeResult(
        defined=False,
        reason="non_finite",
        norm=_shown(norm),
        coefficient=[None] * copies.ranks if isinstance(norm, list) else None,
        clipped_norm=None,
        matches_reference=None,
        keeps_direction=None,
        applied=None,
        param_after=_step(copies, None, lr),
    )


def _alike(applied: Floats, right: Floats) -> bool:
    """Whether two gradients are the same but for rounding."""
    return bool(np.allclose(applied, right, rtol=_SAME, atol=0))


def _one(coefficient: float | list[float | None] | None, ranks: Counts) -> bool:
    """Whether these ranks have one coefficient but for rounding."""
    used = [coefficient[rank] for rank in ranks] if isinstance(coefficient, list) else []
    return not used or _alike(np.array(used, dtype=np.float64), np.full(len(used), used[0], dtype=np.float64))


def _shown(norm: float | list[float]) -> Norm | list[Norm]:
    return [finite_or_name(value) for value in norm] if isinstance(norm, list) else finite_or_name(norm)


def _gradients(copies: Copies, values: Floats) -> list[list[NamedGradient]] | None:
    if not copies.listed:
        return None
    return [[NamedGradient(id=name, grad=grad) for name, grad in rank] for rank in copies.nested(values)]


def _step(copies: Copies, applied: Floats | None, lr: Fraction | None) -> list[list[NamedParam]] | None:
    """w - lr·applied for every copy; w itself when nothing is applied; None where something was not given."""
    if copies.param is None or lr is None or not copies.listed:
        return None
    after = copies.param if applied is None else copies.param - float(lr) * applied
    if not np.isfinite(after).all():
        en, zh = "takes a parameter out of float64", "使参数超出 float64 的范围"
        raise InputError(en, zh, field="lr", code="number_range")
    return [[NamedParam(id=name, param=param) for name, param in rank] for rank in copies.nested(after)]
