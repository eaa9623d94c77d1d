"""A calculator's state as an address or a form holds it, and what is shown of it.

    panel    a=2&b=8                          fields of the calculator's own GET query
    body     body.n=2;8&body.g=-2;1&scheme=…  one field for each top-level field of the POST body, and the scheme shown

Below the web framework, so that the worker for large requests runs the same code; what it makes can be pickled.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlencode

from pydantic import ValidationError
from pydantic_core import from_json

from samestep.app.calculators import Calculator, registry
from samestep.app.contract.errors import FieldError, InputError, RefusedError, not_json, refused
from samestep.app.contract.limits import LONGEST_ADDRESS
from samestep.app.contract.log_lines import read_log
from samestep.app.contract.models import Inputs, Result
from samestep.app.contract.paths import Leaf, leaves
from samestep.app.instruments import bodies
from samestep.app.instruments.bodies import BODY, BodyState
from samestep.app.instruments.case_files import CaseList, numbers_in
from samestep.app.instruments.comparison import Comparison, check, compare

LONGEST_TEXT = 200_000
"""A field whose text is longer is not sent back to be edited."""
_LISTED = 600

_RIDERS = ("expected", "tolerance")
"""Fields of an own page that belong to no calculator: what a case file expects."""


def named_once(pairs: Iterable[tuple[str, str]]) -> tuple[dict[str, str], tuple[FieldError, ...]]:
    """The fields of an address or a form by name, the last one where a name stands twice, and what is told of that."""
    fields: dict[str, str] = {}
    errors: dict[str, FieldError] = {}
    for name, value in pairs:
        if name in fields:
            errors[name] = FieldError((name,), "given_twice", "is given twice", "出现了两次")
        fields[name] = value
    return fields, tuple(errors.values())


@contextmanager
def refusing() -> Iterator[None]:
    """What pydantic or a calculator refuses inside becomes a RefusedError."""
    try:
        yield
    except (ValidationError, InputError) as error:
        raise refused(error) from None


def is_general(fields: Iterable[str]) -> bool:
    """Whether an address with these fields holds a body."""
    return any(name.startswith(BODY) for name in fields)


def read_from_log(calculator: Calculator, fields: Mapping[str, str]) -> dict[str, str]:
    """The fields of a panel that a pasted log line gives, by name: its own, blank where the line does not name it, and
    those beside it that the line names too. Empty where nothing was pasted.
    """
    read: dict[str, str] = {}
    for group in calculator.query.logged:
        for name in group.values():
            found = read_log(fields.get(name, ""))
            if found:
                read |= {name: ""} | {group[kind]: number for kind, number in found.items()}
    return read


# ---- from an address to a body or a view


def of_query(calculator: Calculator, fields: Mapping[str, str]) -> BodyState:
    """The body that a panel's state stands for; RefusedError where its fields do not."""
    with refusing():
        query = calculator.query.model_validate({**fields, **read_from_log(calculator, fields)})
        body = query.inputs().model_dump(mode="json", exclude_unset=True, exclude_none=True)
    return BodyState(_whole_numbers(body), getattr(query, "scheme", None))


def _whole_numbers(value: Any) -> Any:
    """The same JSON, `2.0` as `2`: arrays of float64 forget how a number was written."""
    if isinstance(value, dict):
        return {name: _whole_numbers(entry) for name, entry in value.items()}
    if isinstance(value, list):
        return [_whole_numbers(entry) for entry in value]
    return int(value) if isinstance(value, float) and value.is_integer() and 0 < abs(value) < 2**53 else value


def state_of(calculator: Calculator, fields: Mapping[str, str]) -> BodyState:
    """The body of a state of either kind."""
    return bodies.read(calculator, fields) if is_general(fields) else of_query(calculator, fields)


def view_of(calculator: Calculator, fields: Mapping[str, str]) -> Result:
    """What the fields of an address show, of a panel or of a whole body; RefusedError, with all that is wrong."""
    if is_general(fields):
        return view_of_body(calculator, bodies.read(calculator, fields))
    with refusing():
        return calculator.panel(calculator.query.model_validate({**fields, **read_from_log(calculator, fields)}))


def view_of_body(calculator: Calculator, state: BodyState) -> Result:
    """What a page shows of a body; RefusedError names its fields as an address has them."""
    with _in_address(calculator, state.body):
        return calculator.present(calculator.inputs.model_validate(state.body), state.scheme)


def inputs_of(calculator: Calculator, state: BodyState) -> Inputs:
    """The body, validated; RefusedError as in `view_of_body`."""
    with _in_address(calculator, state.body):
        return calculator.inputs.model_validate(state.body)


@contextmanager
def _in_address(calculator: Calculator, body: Mapping[str, Any]) -> Iterator[None]:
    """The errors of a body, by the names that the address has for its fields."""
    try:
        with refusing():
            yield
    except RefusedError as error:
        at_the_top = {name for name in calculator.inputs.in_place if name not in body}
        raise RefusedError(_renamed(one, at_the_top) for one in error.errors) from None


def _renamed(error: FieldError, at_the_top: set[str]) -> FieldError:
    steps = [step for step in error.path if step not in ("cells", "columns")]
    if not steps or steps[0] == "scheme":
        return error
    if steps[0] in at_the_top and len(steps) > 1:
        steps = steps[1:]
    return FieldError((f"{BODY}{steps[0]}", *steps[1:]), error.code, error.en, error.zh, error.value, error.place)


# ---- what is shown of an address or a form


@dataclass(frozen=True)
class Expectation:
    """What a case file expects of the answer, and how near it must come."""

    values: Any
    tolerance: Mapping[str, float]

    def fields(self) -> dict[str, str]:
        """As they ride along in an address."""
        texts = {"expected": self.values, "tolerance": dict(self.tolerance)}
        return {name: json.dumps(v, ensure_ascii=False, separators=(",", ":")) for name, v in texts.items() if v}


@dataclass(frozen=True)
class Shown:
    """A state and what is shown of it.

    `fields` are the state's fields as typed; `withheld` says that some are too long to be sent back. `read` are those
    that a pasted log line gave. `view` is None where the inputs are refused. `cases` are those of a file to choose
    from; `from_file` says that the state was.
    """

    name: str
    fields: Mapping[str, str]
    refusals: tuple[FieldError, ...] = ()
    view: Result | None = None
    expectation: Expectation | None = None
    read: Mapping[str, str] = field(default_factory=dict)
    cases: CaseList | None = None
    withheld: bool = False
    from_file: bool = False

    @property
    def general(self) -> bool:
        return is_general(self.fields) or self.withheld

    def query(self) -> str | None:
        """The query string of the address that holds this state; None where it is too long for a link."""
        if self.withheld:
            return None
        text = query_of({**self.fields, **(self.expectation.fields() if self.expectation else {})})
        return text if len(text) <= LONGEST_ADDRESS else None

    def comparison(self) -> Comparison | None:
        """The answer beside what is expected of it."""
        if self.expectation is None or self.view is None:
            return None
        return compare(self.expectation.values, self.view, self.expectation.tolerance)

    def numbers(self) -> tuple[list[Leaf], int]:
        """The first values of the answer by path, and how many there are in all."""
        found = [] if self.view is None else list(leaves(self.view.model_dump(mode="json")))
        return found[:_LISTED], len(found)

    def body(self) -> BodyState | None:
        """The state as a body; None where it is refused, was too long to keep, or has numbers that no body holds, and
        of a file with several cases, of which none is chosen yet."""
        if self.view is None or self.withheld or self.cases is not None:
            return None
        try:
            return state_of(registry()[self.name], self.fields)
        except RefusedError:
            return None


def query_of(fields: Mapping[str, str]) -> str:
    """Fields as a query string that stays readable and short: what needs no escaping has none."""
    return urlencode(fields, safe=",;:/[]")


def shown(calculator: Calculator, pairs: list[tuple[str, str]]) -> Shown:
    """The state of an address or form."""
    fields, twice = named_once(pairs)
    expectation, wrong = expectation_in(fields)
    refusals = [*twice, *wrong]
    read = {} if is_general(fields) else read_from_log(calculator, fields)
    fields |= read
    kept = {name: text for name, text in fields.items() if len(text) <= LONGEST_TEXT}
    state = Shown(calculator.name, kept, expectation=expectation, read=read, withheld=len(kept) < len(fields))
    try:
        view = view_of(calculator, fields)
    except RefusedError as error:
        refusals += error.errors
    return replace(state, refusals=tuple(refusals)) if refusals else replace(state, view=view)


def expectation_in(fields: dict[str, str]) -> tuple[Expectation | None, list[FieldError]]:
    """What rides along, taken out of the fields."""
    found: dict[str, Any] = {}
    refusals: list[FieldError] = []
    for name in _RIDERS:
        if name in fields:
            try:
                found[name] = from_json(fields.pop(name), allow_inf_nan=False)
            except ValueError as error:
                refusals.append(FieldError((name,), "json_invalid", *not_json(error)))
    if "expected" not in found:
        return None, refusals
    if not isinstance(found["expected"], dict):
        return None, [*refusals, FieldError(("expected",), "dict_type", "must be an object", "应为对象")]
    try:
        check(found["expected"])
    except InputError as error:
        refusals += refused(error).errors
    if refusals:
        return None, refusals
    return Expectation(found["expected"], numbers_in(found.get("tolerance"))), refusals
