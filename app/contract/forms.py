"""The form of a field: how it is shown in a form, and how what is typed there is read, written again and described.

A field's type carries its `Form`; no other place says how the field is read, so that what a wrong value is told is the
same at every door. Fields that are one of several words, true or false, or free text have a form by their plain type.
"""

import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, core_schema

Kind = Literal["number", "choice", "flag", "text", "list", "matrix", "json"]


@dataclass(frozen=True, eq=False)
class Form:
    """Stands in the metadata of an `Annotated` type.

    `read` makes a value of what a body or a text field holds, or raises InputError; `write` is its JSON; `schema`
    describes it. Where one of them is None, the plain type's own serves; `core` is pydantic's reading of many numbers
    at once. `words` are those that a choice may be. `scalar` says whether a list may also be one number, `textual`
    whether what is otherwise JSON has a grammar of its own.
    """

    kind: Kind
    read: Callable[[Any], Any] | None = None
    schema: Mapping[str, Any] | None = None
    write: Callable[[Any], Any] | None = None
    core: CoreSchema | None = None
    words: tuple[str, ...] = ()
    scalar: bool = False
    textual: bool = False

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        if self.read is not None:
            read: CoreSchema = core_schema.no_info_plain_validator_function(self.read)
        else:
            read = self.core or handler(source)
        if self.write is None:
            return read
        written = core_schema.plain_serializer_function_ser_schema(self.write, when_used="json")
        return {**read, "serialization": written}

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return handler(core) if self.schema is None else dict(self.schema)

    def in_json(self) -> "Form":
        """The same for a field inside an object that is typed as JSON: it is written as JSON is."""
        return replace(self, write=None)

    def absent(self) -> "Form":
        """The same for a field that may be left out, then with None for a default; null is no value for it."""
        return replace(self.optional(), read=self.read)

    def optional(self) -> "Form":
        """The same for a field that may be left blank, or be null: then it was not given."""
        read, write = self.read, self.write
        return replace(
            self,
            read=None if read is None else lambda value: None if blank_to_none(value) is None else read(value),
            write=None if write is None else lambda value: None if value is None else write(value),
        )


def blank_to_none(value: object) -> object:
    """A blank optional field was not given."""
    return None if isinstance(value, str) and value.strip() == "" else value


def form_of(field: FieldInfo) -> Form:
    """The form of a model's field; TypeError for a type that has none."""
    return _form(field.annotation, tuple(field.metadata))


def _form(annotation: Any, metadata: tuple[Any, ...] = ()) -> Form:
    for mark in reversed(metadata):
        if isinstance(mark, Form):
            return mark
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _form(arguments[0], arguments[1:])
    if origin in (Union, types.UnionType):
        (given,) = (one for one in arguments if one is not types.NoneType)
        return _form(given)
    if origin is Literal:
        return Form("choice", words=arguments)
    plain = {bool: Form("flag"), str: Form("text")}
    if annotation not in plain:
        raise TypeError(f"the type {annotation} of a field has no form: see contract/fields")
    return plain[annotation]
