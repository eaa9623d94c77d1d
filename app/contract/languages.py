"""The two languages of the wiki, and a text in both of them."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Lang = Literal["zh", "en"]
LANGUAGES: tuple[Lang, ...] = ("zh", "en")


class Name(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    zh: str = Field(min_length=1)
    en: str = Field(min_length=1)

    def __getitem__(self, lang: str) -> str:
        return {"zh": self.zh, "en": self.en}[lang]
