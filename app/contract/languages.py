"""The two languages of the wiki, and a text in both of them."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, with_config
from typing_extensions import TypedDict

Lang = Literal["zh", "en"]
LANGUAGES: tuple[Lang, ...] = ("zh", "en")

Words = Annotated[str, Field(min_length=1)]


@with_config(ConfigDict(extra="forbid"))
class Text(TypedDict):
    """The same words in both languages."""

    zh: Words
    en: Words


class Named(BaseModel):
    """An entry of a file of content that begins with its own text in both languages; `entry[lang]` is that text."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    zh: Words
    en: Words

    def __getitem__(self, lang: str) -> str:
        return self.zh if lang == "zh" else self.en
