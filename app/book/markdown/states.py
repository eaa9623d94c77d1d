"""States of calculators that a text names, in a fence or in a checked number."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from pydantic import ValidationError

from samestep.app.calculators import Calculator
from samestep.app.contract.errors import InputError


@dataclass(frozen=True)
class Refusal:
    """Why a calculator refuses a state; `field` is empty where no single one is to blame."""

    field: str
    reason: str


@dataclass(frozen=True)
class State:
    """A state with its answer as JSON, or with what is wrong with it."""

    view: Any
    refusals: tuple[Refusal, ...] = ()


def state(calculator: Calculator, fields: Mapping[str, str]) -> State:
    """The answer to a GET address with these fields. Both languages and several numbers share one computation."""
    return _state(calculator, tuple(sorted(fields.items())))


@lru_cache(maxsize=256)
def _state(calculator: Calculator, fields: tuple[tuple[str, str], ...]) -> State:
    try:
        view = calculator.panel(calculator.query.model_validate(dict(fields)))
    except ValidationError as error:
        return State(None, tuple(_refusal(e["loc"], e["msg"]) for e in error.errors(include_url=False)))
    except InputError as error:
        return State(None, (_refusal(error.field, error.en),))
    return State(view.model_dump(mode="json"))


def forget_states() -> None:
    """Free what `state` remembers, when a book is complete."""
    _state.cache_clear()


def _refusal(place: tuple[str | int, ...], message: str) -> Refusal:
    path = ".".join(map(str, place))
    return Refusal(str(place[0]) if place else "", f"{path} {message.removeprefix('Value error, ')}".strip())
