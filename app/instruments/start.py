"""The guided start: from what a reader sees to the instrument that tells, filled in; `content/start.toml` as values."""

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from urllib.parse import urlencode

from pydantic import BaseModel, ConfigDict

from samestep.app.contract.texts import InBoth, Named


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Expectation(_Value):
    """A field of the calculator's answer (a dotted path) and what it shows in the state that the start leads to."""

    field: str
    value: str


class Answer(Named):
    """One way on: the calculator's state, the fields that are asked for first, and the section that explains it."""

    why: InBoth
    calculator: str
    fields: Mapping[str, str] = {}
    ask: tuple[str, ...] = ()
    chapter: str
    expect: Expectation | None = None

    @property
    def state(self) -> str:
        """The query of the calculator's address, with its question mark; empty in the default state."""
        return f"?{urlencode(self.fields)}" if self.fields else ""


class Symptom(Named):
    """What a reader sees, and the answers to “when does it happen?”."""

    id: str
    answer: tuple[Answer, ...]


class Guide(_Value):
    """All symptoms in their order, the labels of the fields that they ask for, and what each calculator finds."""

    field: Mapping[str, InBoth]
    find: Mapping[str, InBoth]
    symptom: tuple[Symptom, ...]

    def questions(self, names: Iterable[str]) -> list[tuple[Symptom | None, list[str]]]:
        """These calculators by the first symptom that leads to them, in the order of the symptoms; without one last."""
        left = list(names)
        groups: list[tuple[Symptom | None, list[str]]] = []
        for symptom in self.symptom:
            found = [name for name in dict.fromkeys(answer.calculator for answer in symptom.answer) if name in left]
            left = [name for name in left if name not in found]
            groups += [(symptom, found)] if found else []
        return groups + ([(None, left)] if left else [])


def load_guide(content: Path) -> Guide:
    """Read `start.toml` of the content folder; pydantic's ValidationError names what is wrong with it."""
    return Guide.model_validate(tomllib.loads((content / "start.toml").read_text("utf-8")))
