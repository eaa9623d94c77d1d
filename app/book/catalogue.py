"""What is declared once for the whole book: tags, planned chapters and experiments, renamed addresses, the glossary."""

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from samestep.app.book.markdown.glossary import Glossary, mistakes_of
from samestep.app.book.markdown.pieces import Mistake
from samestep.app.contract.texts import InBoth, Named

_TOML_LINE = re.compile(r" ?\(at line (\d+), column \d+\)")
_Model = TypeVar("_Model", bound=BaseModel)


class PlannedChapter(Named):
    number: int
    part: str


class Tags(BaseModel):
    """`content/tags.toml`: ids and names of parts, topics, levels and kinds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    part: dict[str, InBoth] = {}
    topic: dict[str, InBoth] = {}
    level: dict[str, InBoth] = {}
    kind: dict[str, InBoth] = {}

    def family(self, name: str) -> Mapping[str, InBoth]:
        return {"part": self.part, "topic": self.topic, "level": self.level, "kind": self.kind}[name]


class Plans(BaseModel):
    """`content/planned.toml`: chapters and experiments that texts may speak of before they exist."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    chapter: dict[str, PlannedChapter] = {}
    experiment: dict[str, InBoth] = {}


class _Redirects(BaseModel):
    """`content/redirects.toml`: old slug = "new slug"."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    redirect: dict[str, str] = {}


class Catalogue:
    """The four files of one content folder; a missing one is empty."""

    def __init__(self, content: Path) -> None:
        self.mistakes: list[Mistake] = []
        self.tags = self._read(content / "tags.toml", Tags)
        self.plans = self._read(content / "planned.toml", Plans)
        self.redirects_file = content / "redirects.toml"
        self.redirects: Mapping[str, str] = self._read(self.redirects_file, _Redirects).redirect
        self.glossary_file = content / "glossary.toml"
        self.glossary = self._read(self.glossary_file, Glossary)
        self.mistakes += mistakes_of(self.glossary, self.glossary_file)
        families = (self.tags.topic, self.tags.level, self.tags.kind)
        ids = [identifier for family in families for identifier in family]
        for identifier in sorted({one for one in ids if ids.count(one) > 1}):
            self.mistakes.append(Mistake(content / "tags.toml", 1, f"the tag “{identifier}” is declared twice"))
        for slug, plan in self.plans.chapter.items():
            if plan.part not in self.tags.part:
                reason = f"the planned chapter “{slug}” belongs to a part “{plan.part}” that tags.toml does not have"
                self.mistakes.append(Mistake(content / "planned.toml", 1, reason))

    def _read(self, file: Path, model: type[_Model]) -> _Model:
        if not file.is_file():
            return model()
        text = file.read_text(encoding="utf-8")
        try:
            return model.model_validate(tomllib.loads(text))
        except tomllib.TOMLDecodeError as error:
            place = _TOML_LINE.search(str(error))
            reason = f"not TOML: {_TOML_LINE.sub('', str(error))}"
            self.mistakes.append(Mistake(file, int(place[1]) if place else 1, reason))
        except ValidationError as error:
            for problem in error.errors(include_url=False):
                table = ".".join(map(str, problem["loc"][:2]))
                message = problem["msg"].removeprefix("Value error, ")
                line = next((n for n, row in enumerate(text.split("\n"), 1) if row.startswith(f"[{table}]")), 1)
                self.mistakes.append(Mistake(file, line, f"{'.'.join(map(str, problem['loc']))}: {message}"))
        return model()
