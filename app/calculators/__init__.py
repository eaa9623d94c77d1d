"""The folder is the registry: every package here that has a `compute` is a calculator, named after its package.

A calculator is `Inputs` (a body), `Query` (the fields of a GET address), `Result` and `compute`, which turns one into
the other. Three more doors have a default:

    View, present   the result, and what a page shows beside it; without them a page shows the result as it is
    panel           the view of a GET address: `present` of the body that it stands for

A calculator whose Query has a field `scheme` lets one of its schemes be selected: its `present` takes the scheme too.
"""

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

from samestep.app.contract.models import Inputs, Query, Result, no_scheme
from samestep.app.contract.numbers import within_float64


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


@cache
def registry() -> dict[str, Calculator]:
    """All calculators by name."""
    names = sorted(found.name for found in pkgutil.iter_modules(__path__))
    modules = {name: importlib.import_module(f"{__name__}.{name}") for name in names}
    return {name: _calculator(name, module) for name, module in modules.items() if hasattr(module, "compute")}


def _calculator(name: str, module: ModuleType) -> Calculator:
    given = vars(module)
    present = given.get("present", module.compute)
    if "scheme" not in module.Query.model_fields:
        present = _without_schemes(present)
    is_body = issubclass(module.Query, module.Inputs)

    def panel(query: Any) -> Result:
        return present(query if is_body else query.inputs(), getattr(query, "scheme", None))  # type: ignore[no-any-return]

    return Calculator(
        name=name,
        inputs=module.Inputs,
        query=module.Query,
        result=module.Result,
        view=given.get("View", module.Result),
        compute=within_float64(module.compute),
        present=within_float64(present),
        panel=within_float64(given.get("panel", panel)),
    )


def _without_schemes(present: Callable[[Any], Result]) -> Callable[[Any, str | None], Result]:
    def present_alone(inputs: Inputs, scheme: str | None) -> Result:
        no_scheme(scheme)
        return present(inputs)

    return present_alone
