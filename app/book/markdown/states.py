"""States of calculators that a text names, in a fence or in a checked number."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from samestep.app.calculators import Calculator
from samestep.app.contract.errors import FieldError, RefusedError
from samestep.app.instruments.states import view_of


@dataclass(frozen=True)
class State:
    """A state with its answer as JSON, or with what is wrong with it."""

    view: Any
    refusals: tuple[FieldError, ...] = ()


def state(calculator: Calculator, fields: Mapping[str, str]) -> State:
    """The answer to a GET address with these fields. Both languages and several numbers share one computation."""
    return _state(calculator, tuple(sorted(fields.items())))


@lru_cache(maxsize=256)
def _state(calculator: Calculator, fields: tuple[tuple[str, str], ...]) -> State:
    try:
        return State(view_of(calculator, dict(fields)).model_dump(mode="json"))
    except RefusedError as error:
        return State(None, error.errors)


def forget_states() -> None:
    """Free what `state` remembers, when a book is complete."""
    _state.cache_clear()
