"""The folder is the registry: every module here that has a `compute` is a calculator, named after its module."""

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from samestep.app.contract.models import Inputs, Query, Result


@dataclass(frozen=True)
class Calculator:
    """One calculator's doors.

    `compute` turns a POST body (`inputs`) into a `result`; `present` turns it into a `view`: the same result, and what
    a page shows beside it, with one of the body's schemes selected. `panel` turns the fields of a GET address (`query`)
    into such a view.
    """

    name: str
    inputs: type[Inputs]
    query: type[Query]
    result: type[Result]
    view: type[Result]
    compute: Callable[[Any], Result]
    present: Callable[[Any, str | None], Result]
    panel: Callable[[Any], Result]


_DOORS = ("Inputs", "Query", "Result", "View", "compute", "present", "panel")


@cache
def registry() -> dict[str, Calculator]:
    """All calculators by name."""
    names = sorted(found.name for found in pkgutil.iter_modules(__path__))
    modules = {name: importlib.import_module(f"{__name__}.{name}") for name in names}
    return {
        name: Calculator(name, *(getattr(module, door) for door in _DOORS))
        for name, module in modules.items()
        if hasattr(module, "compute")
    }
