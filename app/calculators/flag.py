"""A flag as it is typed: true or false in a body, `true` or `false` in a text field."""

from typing import Annotated

from pydantic import BeforeValidator, StrictBool

_TEXTS = {"true": True, "false": False}

Flag = Annotated[
    StrictBool, BeforeValidator(lambda value: _TEXTS.get(value, value) if isinstance(value, str) else value)
]
