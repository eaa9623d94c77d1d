"""A name or sentence in both languages, as the declarations of the book hold it."""

from pydantic import BaseModel, ConfigDict, Field


class Name(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    zh: str = Field(min_length=1)
    en: str = Field(min_length=1)

    def __getitem__(self, lang: str) -> str:
        return {"zh": self.zh, "en": self.en}[lang]
