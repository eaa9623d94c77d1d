"""The two languages of the wiki, and a text in both of them; the standard library only, as readers of evidence need."""

from typing import Literal, TypedDict

Lang = Literal["zh", "en"]
LANGUAGES: tuple[Lang, ...] = ("zh", "en")


class Text(TypedDict):
    """The same words in both languages."""

    zh: str
    en: str
