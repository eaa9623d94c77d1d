"""Clipping copy by copy and element by element: what is listed where there are few enough of them."""

import math
from collections.abc import Iterator

import numpy as np

from samestep.app.calculators.clip_ownership.copies import Copies
from samestep.app.calculators.clip_ownership.schemes import Norm, SchemeResult
from samestep.app.contract.arrays import Floats
from samestep.app.contract.models import Reason, Result
from samestep.app.contract.numbers import finite_or_name


class UnscaledGradient(Result):
    """As NamedGradient, before the check: `inf` and `nan` are possible."""

    id: str
    grad: list[Norm]


class Square(Result):
    """What one copy adds to the norm: `square` = sum of its |g|^p (null for p = inf, and beyond float64).

    `share` is its part of the sum over every copy; for p = inf, 1 where the copy holds the maximum, else 0.
    """

    rank: int
    id: str
    norm: Norm
    square: float | None
    share: float | None
    counted_by_owner: bool
    counted_every_copy: bool


class Row(Result):
    """One element of one copy, from the scaled value to the parameter after the step, by the selected scheme.

    `param` and `param_after` are null where the body gives no parameters, the latter also where it gives no `lr`.
    """

    rank: int
    id: str
    element: int
    scaled: Norm
    gradient: Norm
    owner: bool
    owner_rank: int
    coefficient: float | None
    applied: float | None
    param: float | None
    param_after: float | None
    reason: Reason | None


def unscaled_gradients(copies: Copies, gradient: Floats) -> list[list[UnscaledGradient]]:
    """The gradient after the division by the loss scale, copy by copy."""
    return [
        [UnscaledGradient(id=name, grad=[finite_or_name(value) for value in grad]) for name, grad in rank]
        for rank in copies.nested(gradient)
    ]


def squares_of(copies: Copies, p: float, norms: Floats, every: float) -> list[Square]:
    """One entry a copy, of the copies' own norms and the norm over every copy."""
    squares = norms**p if p != math.inf else np.full(len(norms), np.nan)
    lost = ~np.isfinite(squares) | ((squares == 0) & (norms != 0))
    squares, shares = np.where(lost, np.nan, squares), (norms / every) ** p
    columns = (copies.rank, norms, squares, shares, copies.owner)
    return [
        Square(
            rank=rank,
            id=name,
            norm=finite_or_name(norm),
            square=None if math.isnan(square) else square,
            share=None if math.isnan(share) or not math.isfinite(every) else share,
            counted_by_owner=owner,
            counted_every_copy=True,
        )
        for name, rank, norm, square, share, owner in zip(
            copies.names, *(column.tolist() for column in columns), strict=True
        )
    ]


def rows_of_elements(copies: Copies, unscaled: list[list[UnscaledGradient]], scheme: SchemeResult) -> Iterator[Row]:
    """In the order of ranks."""
    owner_ranks = iter(copies.rank[copies.origin].tolist())
    params = None if copies.param is None else copies.nested(copies.param)
    after = scheme.param_after
    for r, rank in enumerate(copies.nested(copies.scaled)):
        coefficient = scheme.coefficient[r] if isinstance(scheme.coefficient, list) else scheme.coefficient
        for k, (name, scaled) in enumerate(rank):
            owner_rank = next(owner_ranks)
            for i, value in enumerate(scaled):
                yield Row(
                    rank=r,
                    id=name,
                    element=i,
                    scaled=finite_or_name(value),
                    gradient=unscaled[r][k].grad[i],
                    owner=owner_rank == r,
                    owner_rank=owner_rank,
                    coefficient=coefficient,
                    applied=None if scheme.applied is None else scheme.applied[r][k].grad[i],
                    param=None if params is None else params[r][k][1][i],
                    param_after=None if after is None else after[r][k].param[i],
                    reason=scheme.reason,
                )
