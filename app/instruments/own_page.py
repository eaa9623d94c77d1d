"""What a calculator's own page works on: a state from an address, a form or a file, and what is shown of it.

Below the web framework, so that the worker for large requests runs the same code; what it makes can be pickled.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import parse_qsl, urlencode

from pydantic_core import from_json
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import FormParser, parse_options_header

from samestep.app.calculators import Calculator, registry
from samestep.app.contract.errors import FieldError, InputError, RefusedError, not_json, refused
from samestep.app.contract.limits import LONGEST_ADDRESS
from samestep.app.contract.models import Result
from samestep.app.contract.paths import Leaf, leaves
from samestep.app.instruments import states
from samestep.app.instruments.case_files import Case, CaseList, file_error, numbers_in, read_file
from samestep.app.instruments.comparison import Comparison, check, compare
from samestep.app.instruments.pasted import read_from_log
from samestep.app.instruments.states import BodyState, named_once

LONGEST_TEXT = 200_000
"""A field whose text is longer is not sent back to be edited."""
_MOST_NUMBERS = 100_000
"""A body of more numbers than these is not written out as text at all."""
_LISTED = 600

FILE, INTO = "file", "into"
_RIDERS = ("expected", "tolerance")
"""Fields of an own page that belong to no calculator: what a case file expects."""


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
        return states.is_general(self.fields) or self.withheld

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
            return states.state_of(registry()[self.name], self.fields)
        except RefusedError:
            return None


def query_of(fields: Mapping[str, str]) -> str:
    """Fields as a query string that stays readable and short: what needs no escaping has none."""
    return urlencode(fields, safe=",;:/[]")


# ---- from an address or a form


def shown(calculator: Calculator, pairs: list[tuple[str, str]]) -> Shown:
    """The state of an address or form."""
    fields, twice = named_once(pairs)
    expectation, wrong = _expectation(fields)
    refusals = [*twice, *wrong]
    read = {} if states.is_general(fields) else read_from_log(calculator, fields)
    fields |= read
    kept = {name: text for name, text in fields.items() if len(text) <= LONGEST_TEXT}
    state = Shown(calculator.name, kept, expectation=expectation, read=read, withheld=len(kept) < len(fields))
    try:
        view = states.view_of(calculator, fields)
    except RefusedError as error:
        refusals += error.errors
    return replace(state, refusals=tuple(refusals)) if refusals else replace(state, view=view)


def _expectation(fields: dict[str, str]) -> tuple[Expectation | None, list[FieldError]]:
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


# ---- from a form that may bring a file


def submitted(name: str, content_type: str, body: bytes) -> Shown:
    """The state that a POST brings: its file's if it has one, else its fields'."""
    calculator = registry()[name]
    try:
        pairs, file = form_of(content_type, body)
    except FormParserError:
        return Shown(name, {}, (FieldError((), "form", "the form cannot be read", "表单无法读取"),))
    into = dict(pairs).get(INTO, "")
    pairs = [(field, text) for field, text in pairs if field != INTO]
    return shown(calculator, pairs) if file is None else _opened(calculator, pairs, file, into)


def form_of(content_type: str, body: bytes) -> tuple[list[tuple[str, str]], bytes | None]:
    """The fields of a form, and its file if one was chosen; a file in another field is that field's text."""
    kind, options = parse_options_header(content_type)
    if kind != b"multipart/form-data":
        return parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True), None
    pairs: list[tuple[str, str]] = []
    files: list[bytes] = []

    def on_field(field: Any) -> None:
        if field.field_name != FILE.encode():
            pairs.append(
                (field.field_name.decode("utf-8", "replace"), (field.value or b"").decode("utf-8-sig", "replace"))
            )
        elif field.value:
            files.append(field.value)

    def on_file(file: Any) -> None:
        file.file_object.seek(0)
        content = file.file_object.read()
        if file.field_name != FILE.encode():
            pairs.append((file.field_name.decode("utf-8", "replace"), content.decode("utf-8-sig", "replace")))
        elif content or file.file_name:
            files.append(content)

    limits = {"MAX_MEMORY_FILE_SIZE": len(body) + 1}
    parser = FormParser(kind.decode(), on_field, on_file, boundary=options.get(b"boundary"), config=limits)
    parser.write(body)
    parser.finalize()
    parser.close()
    return pairs, files[0] if files else None


def _opened(calculator: Calculator, pairs: list[tuple[str, str]], file: bytes, into: str) -> Shown:
    fields, _ = named_once(pairs)
    _expectation(fields)
    try:
        found = read_file(calculator, file, into, _body_of(calculator, fields), _scheme_of(calculator, fields))
    except RefusedError as error:
        return Shown(calculator.name, fields, error.errors)
    if isinstance(found, CaseList):
        return replace(shown(calculator, list(fields.items())), cases=found)
    if not found.state.body:
        return Shown(calculator.name, fields, file_error("holds an empty body", "请求体为空").errors)
    return opened(found)


def _scheme_of(calculator: Calculator, fields: Mapping[str, str]) -> str | None:
    """The scheme that the page shows: the state's, or the panel's own where the state names none."""
    default = calculator.query.model_fields.get("scheme")
    return None if default is None else fields.get("scheme", default.default)


def _body_of(calculator: Calculator, fields: Mapping[str, str]) -> dict[str, Any]:
    """What a table leaves as it is; nothing where the state cannot be read."""
    try:
        return states.state_of(calculator, fields).body
    except RefusedError:
        return {}


def opened(case: Case) -> Shown:
    """The state of a case."""
    calculator = registry()[case.name]
    fields = states.written(calculator, case.state) if _size(case.state.body) <= _MOST_NUMBERS else None
    long = fields is None or any(len(text) > LONGEST_TEXT for text in fields.values())
    expectation = None if case.expected is None else Expectation(case.expected, case.tolerance)
    state = Shown(case.name, fields or {}, expectation=expectation, withheld=long, from_file=True)
    if long:
        state = replace(state, fields={n: t for n, t in state.fields.items() if len(t) <= LONGEST_TEXT})
    try:
        return replace(state, view=states.view_of_body(calculator, case.state))
    except RefusedError as error:
        return replace(state, refusals=error.errors)


def _size(value: Any) -> int:
    """How many numbers and words a body holds, about; lists of plain values are not looked through."""
    if isinstance(value, Mapping):
        return sum(map(_size, value.values()))
    if isinstance(value, list):
        return len(value) if not value or not isinstance(value[0], list | dict) else sum(map(_size, value))
    return 1


# ---- a file's cases, to choose from


@dataclass(frozen=True)
class Link:
    """A case of a file: its address, or the form that opens it where that is too long."""

    case: Case
    query: str | None
    fields: Mapping[str, str]


def links(cases: CaseList) -> Iterator[tuple[str, list[Link]]]:
    """The cases by calculator."""
    names = dict.fromkeys(case.name for case in cases.cases)
    for name in names:
        yield name, [_link(case) for case in cases.cases if case.name == name]


def _link(case: Case) -> Link:
    fields = states.written(registry()[case.name], case.state)
    if case.expected is not None:
        fields |= Expectation(case.expected, case.tolerance).fields()
    query = query_of(fields)
    return Link(case, query if len(query) <= LONGEST_ADDRESS else None, fields)
