"""The shelf's living figure: tokens on two cards, the weight that each gets under a framework, and the step they make.

The weights are those of `framework_recipe` for one microstep of P = 2. The picture shows about a hundred dots, shared
out as the tokens are; a dot's area is its weight in units of the right one, 1/N. For the arrows card A's tokens pull to
the left and card B's to the right, by (−1, ½) and (1, ½): the right step is their mean over all tokens.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from samestep.app.calculators import registry
from samestep.app.contract.errors import RefusedError
from samestep.app.contract.fields import whole_number
from samestep.app.contract.models import Query as QueryBase
from samestep.app.instruments import states
from samestep.app.instruments.states import refusing

RECIPE = "framework_recipe"
_MOST_TOKENS = 10**9
_COLUMNS, _ROWS = 16, 7
_PITCH = 22.5
_RADIUS = 6.0
"""Of a dot that weighs 1/N."""
_PULLS = ((-1.0, 0.5), (1.0, 0.5))

_Count = Annotated[int, whole_number(0, _MOST_TOKENS)]


class Query(QueryBase):
    """The address of a state: the valid tokens of both cards, and a setting as `framework_recipe` names it."""

    a: _Count = 100
    b: _Count = 900
    framework: str = "torch_ddp/default"


@dataclass(frozen=True)
class Dot:
    """One of the figure's tokens: its place, the radius that its weight gives it, and its card."""

    x: float
    y: float
    radius: float
    card: int


@dataclass(frozen=True)
class FirstAnswer:
    """A state and its answer. `heavier` says whose tokens count more, than whose, and how often; None where none do.

    `right` and `current` are the steps as (x, y); `current` is None where it is undefined. `share` is A's part of all
    tokens in per cent, `boundary` where it ends in the figure.
    """

    query: Query
    recipe: Any
    heavier: tuple[str, str, float] | None
    share: float
    boundary: float
    dots: tuple[Dot, ...]
    right: tuple[float, float]
    current: tuple[float, float] | None


def fields_in(given: Mapping[str, str]) -> dict[str, str]:
    """The fields of an address that are the figure's, in its order, with the defaults of those that are not given."""
    defaults = {name: str(info.default) for name, info in Query.model_fields.items()}
    return {name: given.get(name, default) for name, default in defaults.items()}


def first_answer(fields: Mapping[str, str]) -> FirstAnswer:
    """The answer to a state; RefusedError names the field that is wrong."""
    with refusing():
        query = Query.model_validate(fields)
    try:
        recipe: Any = states.view_of(
            registry()[RECIPE], {"framework": query.framework, "counts": f"{query.a};{query.b}"}
        )
    except RefusedError as error:
        raise RefusedError([one for one in error.errors if one.field == "framework"] or error.errors) from None
    counts = query.a, query.b
    tokens = sum(counts)
    ratios = [cell.ratio for cell in recipe.cells] if recipe.defined else [None, None]
    share = query.a / tokens if tokens else 0.5
    return FirstAnswer(
        query=query,
        recipe=recipe,
        heavier=_heavier(ratios),
        share=100 * share,
        boundary=round(share * _COLUMNS * _PITCH, 1),
        dots=_dots(counts, ratios),
        right=_step(counts, [1.0, 1.0]),
        current=_step(counts, ratios) if recipe.defined else None,
    )


def _heavier(ratios: list[float | None]) -> tuple[str, str, float] | None:
    a, b = ratios
    if not a or not b or a == b:
        return None
    return ("A", "B", a / b) if a > b else ("B", "A", b / a)


def _dots(counts: tuple[int, int], ratios: list[float | None]) -> tuple[Dot, ...]:
    """The dots column by column, those of A first; a card with any token has one dot at least."""
    every, tokens = _COLUMNS * _ROWS, sum(counts)
    if not tokens:
        return ()
    on_a = min(max(round(every * counts[0] / tokens), 1 if counts[0] else 0), every - (1 if counts[1] else 0))
    dots = []
    for i in range(every):
        card = 0 if i < on_a else 1
        ratio = ratios[card]
        radius = 0.0 if ratio is None else _RADIUS * math.sqrt(ratio)
        dots.append(Dot((i // _ROWS + 0.5) * _PITCH, (i % _ROWS + 0.5) * _PITCH, round(radius, 2), card))
    return tuple(dots)


def _step(counts: tuple[int, int], ratios: list[float | None]) -> tuple[float, float]:
    """Σ n·w·pull over both cards, with the weights w = ratio/N."""
    tokens = sum(counts) or 1
    shares = [count / tokens * (ratio or 0.0) for count, ratio in zip(counts, ratios, strict=True)]
    return (
        sum(share * pull[0] for share, pull in zip(shares, _PULLS, strict=True)),
        sum(share * pull[1] for share, pull in zip(shares, _PULLS, strict=True)),
    )
