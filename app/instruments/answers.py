"""What a calculator's doors answer, as bytes, without a web framework: the same code serves in the server's own
process and in the worker that takes large requests."""

import csv
import io
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

from samestep.app.calculators import registry
from samestep.app.contract.errors import FieldError, RefusedError
from samestep.app.contract.models import Result
from samestep.app.instruments import states
from samestep.app.instruments.states import named_once, refusing

JSON = "application/json"
CSV = "text/csv; charset=utf-8"


@dataclass(frozen=True)
class Answer:
    status: int
    content_type: str
    body: bytes


def fields_of(query_string: str) -> dict[str, str]:
    """The fields of an address; RefusedError when one stands twice."""
    fields, errors = named_once(parse_qsl(query_string, keep_blank_values=True))
    if errors:
        raise RefusedError(errors)
    return fields


def get(name: str, query_string: str, wants_csv: bool = False) -> Answer:
    """`GET /api/NAME`: the state of the chapter's panel, or a body in fields of its own."""
    try:
        fields = fields_of(query_string)
        wants_csv = _wants_csv(fields.pop("format", None), wants_csv)
        return _answer(states.view_of(registry()[name], fields), wants_csv)
    except RefusedError as error:
        return Answer(422, JSON, error.as_json("query"))


def post(name: str, query_string: str, body: bytes, wants_csv: bool = False) -> Answer:
    """`POST /api/NAME`: the general case."""
    calculator = registry()[name]
    door = "query"
    try:
        fields = fields_of(query_string)
        wants_csv = _wants_csv(fields.pop("format", None), wants_csv)
        if fields:
            unknown = next(iter(fields))
            raise RefusedError([FieldError((unknown,), "extra_forbidden", "belongs in the body", "应放在请求体中")])
        door = "body"
        with refusing():
            return _answer(calculator.compute(calculator.inputs.model_validate_json(body)), wants_csv)
    except RefusedError as error:
        return Answer(422, JSON, error.as_json(door))


def _wants_csv(chosen: str | None, accepted: bool) -> bool:
    if chosen not in (None, "json", "csv"):
        raise RefusedError(
            [FieldError(("format",), "literal_error", "must be json or csv", "应为 json 或 csv", chosen)]
        )
    return accepted if chosen is None else chosen == "csv"


def _answer(result: Result, wants_csv: bool) -> Answer:
    if wants_csv:
        return Answer(200, CSV, as_csv(result))
    return Answer(200, JSON, result.__pydantic_serializer__.to_json(result))


def as_csv(result: Result) -> bytes:
    """The result's tables, each with its header row, a blank line between them."""
    text = io.StringIO()
    writer = csv.writer(text)
    for i, table in enumerate(result.tables()):
        if i:
            text.write("\r\n")
        writer.writerow(table.header)
        writer.writerows(map(_plain, table.rows))
    return text.getvalue().encode()


def _plain(row: tuple[Any, ...]) -> list[Any]:
    return ["" if value is None else str(value).lower() if isinstance(value, bool) else value for value in row]
