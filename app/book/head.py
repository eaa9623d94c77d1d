"""The head of a chapter: TOML between two lines of `+++`."""

import re
import tomllib
from datetime import date
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from samestep.app.book.markdown.pieces import Mistake

_TOML_LINE = re.compile(r" ?\(at (?:line (\d+), column \d+|end of document)\)")


class Source(BaseModel):
    """A primary source of a chapter; shown at its end as the entry `#source-ID`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str = Field(pattern=r"^[a-z][a-z0-9_-]*$")
    title: str = Field(min_length=1)
    authors: str = ""
    year: int | None = None
    url: str = Field(default="", pattern=r"^(https://\S+)?$")
    version: str = ""
    note: str = ""


class Head(BaseModel):
    """What a chapter says about itself."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    title: str = Field(min_length=1)
    summary: str = Field(min_length=1)
    kicker: str = ""
    part: str
    topic: str
    level: str
    kind: str
    related: tuple[str, ...] = ()
    updated: date | None = None
    """The day of its last change that a reader should hear of."""
    sources: tuple[Source, ...] = ()


class TextWithHead:
    """A chapter's file, cut at its head. `head` is None when it cannot be read; `mistakes` says why."""

    def __init__(self, text: str, file: Path) -> None:
        self.mistakes: list[Mistake] = []
        self._file = file
        self._lines = text.replace("\r\n", "\n").removeprefix("\ufeff").split("\n")
        rest = [number for number, line in enumerate(self._lines) if line.rstrip() == "+++"]
        if len(rest) < 2 or rest[0] != 0:
            self._wrong(1, "the file must start with a head in TOML between two lines of +++")
            self.head, self.body, self.first_line = None, "", 1
            return
        end = rest[1]
        self.body, self.first_line = "\n".join(self._lines[end + 1 :]), end + 2
        self.head = self._read("\n".join(self._lines[1:end]))

    def line_of(self, *place: str | int) -> int:
        """The line of a key of the head: `("title",)`, or `("sources", 2, "url")` for the third source."""
        tables = [n for n, line in enumerate(self._lines[: self.first_line], 1) if line.startswith("[")]
        bounds = [1, *tables, self.first_line]
        table = 1 + place[1] if len(place) > 1 and isinstance(place[1], int) else 0
        start, end = bounds[table : table + 2]
        key = re.compile(rf"\s*{re.escape(str(place[-1]))}\s*=")
        return next((n for n in range(start, end) if key.match(self._lines[n - 1])), start)

    def _read(self, toml: str) -> Head | None:
        try:
            head = Head.model_validate(tomllib.loads(toml))
        except tomllib.TOMLDecodeError as error:
            place = _TOML_LINE.search(str(error))
            line = int(place[1]) + 1 if place and place[1] else self.first_line - 1
            self._wrong(line, f"the head is not TOML: {_TOML_LINE.sub('', str(error))}")
            return None
        except ValidationError as error:
            for problem in error.errors(include_url=False):
                name = ".".join(map(str, problem["loc"]))
                self._wrong(self.line_of(*problem["loc"]), f"head: {name}: {problem['msg']}")
            return None
        ids = [source.id for source in head.sources]
        for position, identifier in enumerate(ids):
            if identifier in ids[:position]:
                self._wrong(self.line_of("sources", position, "id"), f"head: there are two sources “{identifier}”")
        return head

    def _wrong(self, line: int, reason: str) -> None:
        self.mistakes.append(Mistake(self._file, line, reason))
