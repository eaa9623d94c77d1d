"""A whole body as an address or a form holds it: one field for each of its top-level fields, `body.n=2;8`.

A field's text is JSON; or what one would type: a number (`0.1`, `1/3`), a word, and for lists and matrices of numbers
the grammar `2,3;8,0`. Blank means not given where the body may leave the field out and it has no number of its own.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from pydantic.fields import FieldInfo
from pydantic_core import from_json

from samestep.app.calculators import Calculator
from samestep.app.contract.errors import FieldError, InputError, RefusedError, not_json
from samestep.app.contract.fields import JSON
from samestep.app.contract.forms import Form, Kind, form_of
from samestep.app.contract.models import Inputs
from samestep.app.contract.rows import split_rows

BODY = "body."
"""What stands before the name of a body field."""


@dataclass(frozen=True)
class BodyField:
    """One top-level field of a body, as a form shows it.

    `default` is its text at the default; `blank` says whether a blank is a field that was not given. `instead_of` names
    the field in whose place this one may stand.
    """

    name: str
    form: Form
    required: bool
    blank: bool
    default: str
    instead_of: str = ""

    @property
    def kind(self) -> Kind:
        return self.form.kind

    @property
    def address(self) -> str:
        return BODY + self.name


@dataclass(frozen=True)
class BodyState:
    """A body as JSON has it, and which of its schemes is shown (None: the first)."""

    body: dict[str, Any]
    scheme: str | None = None


# ---- what a body consists of


@cache
def body_fields(calculator: Calculator) -> dict[str, BodyField]:
    """The fields of the body by name; those that may stand in another's place come before it."""
    fields: dict[str, BodyField] = {}
    for name, info in calculator.inputs.model_fields.items():
        replaced = calculator.inputs.in_place.get(name)
        for column, of_column in (replaced.model_fields if replaced else {}).items():
            fields[column] = _body_field(column, of_column, None, instead_of=name)
        fields[name] = _body_field(name, info, _default(calculator.inputs, name), required=replaced is None)
    return fields


def _default(model: type[Inputs], name: str) -> Any:
    """A field's default as JSON has it; None where it has none."""
    return model.model_json_schema()["properties"][name].get("default")


def _body_field(name: str, info: FieldInfo, default: Any, *, required: bool = False, instead_of: str = "") -> BodyField:
    form = form_of(info)
    required = required and info.is_required()
    return BodyField(
        name=name,
        form=form,
        required=required,
        blank=not required and (default is None or form.kind in ("list", "matrix", "json")),
        default="" if default is None else text_of(default, form),
        instead_of=instead_of,
    )


# ---- reading


def read(calculator: Calculator, fields: Mapping[str, str]) -> BodyState:
    """The body of an address or form; RefusedError for fields of the panel among it, and for what a body has not."""
    known = body_fields(calculator)
    body: dict[str, Any] = {}
    errors: list[FieldError] = []
    for address, text in fields.items():
        if address == "scheme":
            continue
        field = known.get(address.removeprefix(BODY)) if address.startswith(BODY) else None
        if field is None:
            errors.append(_stray(address))
        elif text.strip() or not field.blank:
            try:
                body[field.name] = value_of(field, text)
            except InputError as error:
                errors.append(FieldError((address,), error.code, error.en, error.zh))
    if errors:
        raise RefusedError(errors)
    return BodyState(body, fields.get("scheme"))


def _stray(address: str) -> FieldError:
    if address.startswith(BODY):
        return FieldError((address,), "extra_forbidden", "is not a field of this body", "不是这个请求体的字段")
    en, zh = "is a field of the panel: a whole body takes none of them", "是面板的字段：给出整个请求体时不能混用"
    return FieldError((address,), "exclusive", en, zh)


def value_of(field: BodyField, text: str) -> Any:
    """What a text stands for, as JSON has it; InputError where it is neither JSON nor what the field takes."""
    text = text.strip()
    if field.kind in ("number", "choice", "text"):
        return _from_json(text) if text.startswith('"') or (text == "null" and field.blank) else text
    if field.kind == "json" and field.form.textual and not text.startswith(("[", "{", '"')):
        return text
    if field.kind in ("list", "matrix") and _is_typed(field, text):
        rows = split_rows(text)
        if field.kind == "matrix":
            return rows
        cells = [cell for row in rows for cell in row]
        return cells[0] if field.form.scalar and len(cells) == 1 else cells
    return _from_json(text)


def _is_typed(field: BodyField, text: str) -> bool:
    """Whether a text of rows is no JSON of the field: typed, or a list as a program prints it."""
    if text.startswith("["):
        try:
            found = from_json(text)
        except ValueError:
            return '"' not in text and text.endswith("]")
        return field.kind == "matrix" and bool(found) and not any(isinstance(row, list) for row in found)
    return not text.startswith(("{", '"', "null"))


def _from_json(text: str) -> Any:
    try:
        return from_json(text, allow_inf_nan=False)
    except ValueError as error:
        raise InputError(*not_json(error), code="json_invalid") from None


# ---- writing


def written(calculator: Calculator, state: BodyState) -> dict[str, str]:
    """The fields of the address or form that holds a body."""
    known = body_fields(calculator)
    fields: dict[str, str] = {}
    for name, value in calculator.inputs.laid_out(state.body).items():
        field = known.get(name)
        fields[BODY + name] = text_of(value, field.form if field else JSON)
    return fields | ({} if state.scheme is None else {"scheme": state.scheme})


def text_of(value: Any, form: Form) -> str:
    """A value as one would type it, if that can be read back as the same value, else as JSON."""
    if isinstance(value, str) and not value.startswith(('"', "[", "{")) and value != "null":
        return value
    if form.kind == "matrix" and isinstance(value, list | tuple) and value:
        rows = [_row_text(row) for row in value]
        if None not in rows:
            return ";".join(row for row in rows if row is not None)
    if form.kind == "list" and isinstance(value, list | tuple) and not (form.scalar and len(value) == 1):
        row = _row_text(value)
        if row is not None:
            return row
    plain = _cell_text(value) if form.kind != "json" else None
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")) if plain is None else plain


def _row_text(row: Any) -> str | None:
    cells = [_cell_text(cell) for cell in row] if isinstance(row, list | tuple) else []
    return None if not cells or None in cells else ",".join(cell for cell in cells if cell is not None)


def _cell_text(value: Any) -> str | None:
    """A number or a word; None where it has to be JSON."""
    if isinstance(value, float):
        return repr(value).removesuffix(".0")
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    plain = isinstance(value, str) and value.strip() and not any(mark in value for mark in ',，;；\t\n"[]{}')
    return value if plain and value not in ("null", "true", "false") else None
