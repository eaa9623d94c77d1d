"""What is sent to a calculator's own page: a form, which may bring a file; and the cases of a file, to choose from."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import parse_qsl

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import FormParser, parse_options_header

from samestep.app.calculators import Calculator, registry
from samestep.app.contract.errors import FieldError, RefusedError
from samestep.app.contract.limits import LONGEST_ADDRESS
from samestep.app.instruments import states
from samestep.app.instruments.bodies import written
from samestep.app.instruments.case_files import Case, CaseList, file_error, read_file
from samestep.app.instruments.states import (
    LONGEST_TEXT,
    Expectation,
    Shown,
    expectation_in,
    named_once,
    query_of,
    shown,
)

_MOST_NUMBERS = 100_000
"""A body of more numbers than these is not written out as text at all."""

FILE, INTO = "file", "into"


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
    expectation_in(fields)
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
    fields = written(calculator, case.state) if _size(case.state.body) <= _MOST_NUMBERS else None
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
    fields = written(registry()[case.name], case.state)
    if case.expected is not None:
        fields |= Expectation(case.expected, case.tolerance).fields()
    query = query_of(fields)
    return Link(case, query if len(query) <= LONGEST_ADDRESS else None, fields)
