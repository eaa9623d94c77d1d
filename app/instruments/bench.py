"""What an own page has beside its panel: a form for the whole body, ways in and out, the comparison, all numbers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from samestep.app.calculators import Calculator, registry
from samestep.app.contract.errors import RefusedError
from samestep.app.contract.forms import Kind
from samestep.app.contract.limits import LONGEST_ADDRESS
from samestep.app.contract.paths import Leaf
from samestep.app.instruments import own_page, states
from samestep.app.instruments.bodies import BODY, body_fields, written
from samestep.app.instruments.comparison import Comparison
from samestep.app.instruments.csv_tables import headers, matrices
from samestep.app.instruments.own_page import Link
from samestep.app.instruments.snippets import snippet
from samestep.app.instruments.states import Shown, query_of


@dataclass(frozen=True)
class Control:
    """One field of the body in the form: the name that the form sends, and what is typed in it.

    `textual` says whether what is otherwise JSON has a grammar of its own.
    """

    name: str
    label: str
    kind: Kind
    text: str
    choices: tuple[str, ...]
    blank: bool
    required: bool
    textual: bool
    instead_of: str


@dataclass(frozen=True)
class More:
    """All numbers of the answer by path (the first ones of `total`), and the program that computes them."""

    numbers: tuple[Leaf, ...]
    total: int
    snippet: str | None


@dataclass(frozen=True)
class Bench:
    """What the template `_bench.html` shows; `switch` is the address of the other form in the same state.

    `schemes` are those to choose from in the form of the whole body. `into` are the names of the fields that a table
    without a header may fill, `headers` those that a table may have. `query` is the state's own query string, None
    where it is too long for a link.
    """

    general: bool
    controls: tuple[Control, ...]
    schemes: tuple[str, ...]
    scheme: str
    switch: str | None
    query: str | None
    fields: Mapping[str, str]
    into: tuple[str, ...]
    headers: tuple[str, ...]
    withheld: bool
    comparison: Comparison | None
    cases: tuple[tuple[str, list[Link]], ...]
    without_calculator: Mapping[str, tuple[str, ...]]
    more: More


def bench_of(shown: Shown) -> Bench:
    """The bench of a state."""
    calculator = registry()[shown.name]
    schemes = _schemes(calculator, shown) if shown.general else ()
    return Bench(
        general=shown.general,
        controls=_controls(calculator, shown) if shown.general else (),
        schemes=schemes,
        scheme=shown.fields.get("scheme") or getattr(shown.view, "selected", None) or next(iter(schemes), ""),
        switch=None if shown.general else _general_query(calculator, shown.fields),
        query=shown.query(),
        fields=shown.fields,
        into=tuple(field.name for field in matrices(calculator)),
        headers=headers(calculator),
        withheld=shown.withheld,
        comparison=shown.comparison(),
        cases=tuple(own_page.links(shown.cases)) if shown.cases else (),
        without_calculator=shown.cases.without_calculator if shown.cases else {},
        more=more_of(shown),
    )


def more_of(shown: Shown) -> More:
    """All numbers and the snippet of a state."""
    numbers, total = shown.numbers()
    state = shown.body()
    program = None
    if state is not None:
        program = snippet(shown.name, states.inputs_of(registry()[shown.name], state))
    return More(tuple(numbers), total, program)


def general_query(calculator: Calculator, fields: Mapping[str, str]) -> str:
    """The query string of a panel's state as a body; RefusedError where the panel's fields are refused."""
    return query_of(written(calculator, states.of_query(calculator, fields)))


def _general_query(calculator: Calculator, fields: Mapping[str, str]) -> str | None:
    try:
        query = general_query(calculator, fields)
    except RefusedError:
        return None
    return query if len(query) <= LONGEST_ADDRESS else None


def _controls(calculator: Calculator, shown: Shown) -> tuple[Control, ...]:
    """One control a field; of fields that stand for each other only those that are used, or that may begin."""
    known = body_fields(calculator)
    given = {name.removeprefix(BODY) for name in shown.fields if name.startswith(BODY)}
    replaced = {known[name].instead_of for name in given if name in known} - {""}
    return tuple(
        Control(
            name=field.address,
            label=field.name,
            kind=field.kind,
            text=shown.fields.get(field.address, "" if field.required or field.blank else field.default),
            choices=field.form.words,
            blank=field.blank,
            required=field.required,
            textual=field.form.textual,
            instead_of=field.instead_of,
        )
        for field in known.values()
        if not (field.name in replaced and field.name not in given)
        if not (field.instead_of in given and field.name not in given)
    )


def _schemes(calculator: Calculator, shown: Shown) -> tuple[str, ...]:
    if "scheme" not in calculator.query.model_fields:
        return ()
    schemes: Any = getattr(shown.view, "schemes", None)
    return tuple(schemes) if schemes else tuple(filter(None, [shown.fields.get("scheme")]))
