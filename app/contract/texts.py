"""Texts in both languages as files of content have them."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, GetPydanticSchema
from pydantic_core import core_schema

from samestep.app.contract.languages import LANGUAGES, Lang, Text

Words = Annotated[str, Field(min_length=1)]


def _text(value: object) -> Text:
    given = value if isinstance(value, dict) else {}
    if set(given) != set(LANGUAGES) or not all(isinstance(words, str) and words for words in given.values()):
        raise ValueError("must be words in zh and in en")
    return Text(zh=given["zh"], en=given["en"])


InBoth = Annotated[Text, GetPydanticSchema(lambda *_: core_schema.no_info_plain_validator_function(_text))]
"""A field that is a text in both languages."""


class Named(BaseModel):
    """An entry that begins with its own text in both languages; `entry[lang]` is that text."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    zh: Words
    en: Words

    def __getitem__(self, lang: Lang) -> str:
        return self.zh if lang == "zh" else self.en
