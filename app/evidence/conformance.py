"""The conformance experiment as a matrix: what every setting of every framework did in every scenario.

Everything comes from the published rows (`bags.ConformanceRow`); what a framework's page says beside them, the recipe
and the surprises, is declared in `content/conformance.toml`.
"""

import csv
import io
import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, cast

from pydantic import BaseModel, ConfigDict

from samestep.app.contract.languages import Text
from samestep.app.contract.texts import InBoth
from samestep.app.evidence.bags import ConformanceRow, NotMeasured, Result

NAME = "conformance"
Family = Literal["right", "wrong", "undefined"]
RIGHT = ("global_token_mean", "full_batch", "true_norm", "no_op", "per_update")
UNDEFINED = ("undefined", "aborts", "not_reported", "not_measured")


GLYPHS: Mapping[str, str] = {
    "global_token_mean": "●",
    "replica_equal": "◐",
    "microbatch_equal": "▦",
    "micro_step_equal": "▥",
    "sequence_mean": "≡",
    "sequence_sum": "Σ",
    "constant": "▭",
    "generation_mean": "◷",
    "dropped": "∅",
    "leaking": "↷",
    "other": "✱",
    "full_batch": "◉",
    "scaled": "×",
    "another_direction": "∦",
    "true_norm": "✓",
    "wrong_norm": "✗",
    "not_reported": "–",
    "no_op": "○",
    "state_only": "◌",
    "moved": "↯",
    "per_update": "↻",
    "undefined": "?",
    "aborts": "⊘",
    "not_measured": "…",
}
"""One sign a verdict, so that its colour does not say it alone."""
COUNTERS = "counters"
_COLUMNS = ("A", "B", "C", "D", "E", "F", "clip")
"""Scenarios that most frameworks are put into; the others share a column of the overview."""
_OBJECTIVES = ("S", "G", "H", "T")
"""Scenarios with several sequences a micro-batch, where the objectives of reinforcement learning differ."""


def glyph(verdict: str) -> str:
    """The signs of all rules that a verdict leaves, with the factor of the only one: `▦×P`."""
    names = alternatives(verdict)
    _, _, scale = verdict.partition("*") if len(names) == 1 else ("", "", "")
    signs = "".join(dict.fromkeys(GLYPHS.get(name, "✱") for name in names))
    return f"{signs}×{scale}" if scale else signs


def alternatives(verdict: str) -> list[str]:
    """What a verdict names without its factors: one rule, or several that the scenario cannot tell apart."""
    return [one.partition("*")[0] for one in verdict.split(" | ")]


def family(verdict: str) -> Family:
    """What colour a verdict has: the objective itself, another one, or none."""
    return "right" if verdict in RIGHT else "undefined" if verdict in UNDEFINED else "wrong"


@dataclass(frozen=True)
class Cell:
    """One measurement: its row and the row's dotted path in `result.json`."""

    place: str
    row: ConformanceRow

    @property
    def family(self) -> Family:
        return family(self.row["verdict"])

    @property
    def groups(self) -> list[str]:
        """Of a contrastive row: the encoders and parameters that were compared."""
        return [key.removesuffix("_factor") for key in self.row["values"] if key.endswith("_factor")]


@dataclass(frozen=True)
class Line:
    """One setting of one release, with its measurements by scenario."""

    framework: str
    setting: str
    version: str
    cells: Mapping[str, Cell]

    @property
    def first(self) -> ConformanceRow:
        return next(iter(self.cells.values())).row

    @property
    def anchor(self) -> str:
        """How the addresses of its rows begin, on the page of its framework."""
        return f"{self.setting}-{self.version}".replace(".", "-").replace("_", "-")

    def of(self, kind: str) -> dict[str, Cell]:
        """The measurements of one kind, by scenario."""
        return {scenario: cell for scenario, cell in self.cells.items() if cell.row["kind"] == kind}


@dataclass(frozen=True)
class Release:
    """A framework in one version: what each of its settings did, by scenario."""

    framework: str
    version: str
    lines: tuple[Line, ...]

    def signs(self, scenarios: Iterable[str]) -> list[tuple[Line, str, Cell]]:
        """The measurements of these scenarios, each in the order of the settings."""
        return [
            (line, scenario, line.cells[scenario])
            for scenario in scenarios
            for line in self.lines
            if scenario in line.cells
        ]


@dataclass(frozen=True)
class Fault:
    """A fault of an earlier release that was re-detected: its measurement before and after, and the public thread."""

    place: str
    title: Text
    url: str
    before: Cell
    after: Cell


@dataclass(frozen=True)
class Matrix:
    """A published result as lines, in the order in which they were measured."""

    result: Result

    @cached_property
    def lines(self) -> list[Line]:
        found: dict[tuple[str, str, str], dict[str, Cell]] = {}
        for i, row in enumerate(cast(list[ConformanceRow], self.result["rows"])):
            key = row["framework"], row["setting"], row["version"]
            found.setdefault(key, {})[row["scenario"]] = Cell(f"rows.{i}", row)
        return [Line(*key, cells) for key, cells in found.items()]

    def releases(self, names: Iterable[str]) -> list[Release]:
        """Every version of these frameworks, in their order, with the settings that have a place in the overview."""
        found: dict[tuple[str, str], list[Line]] = {}
        for name in names:
            for line in self.lines:
                if line.framework == name and set(line.cells) & set(self.overview):
                    found.setdefault((name, line.version), []).append(line)
        return [Release(*key, tuple(lines)) for key, lines in found.items()]

    @property
    def overview(self) -> list[str]:
        """Scenarios of the overview: neither objectives of reinforcement learning nor counters, which have tables."""
        return [name for name in self.result["cases"] if name not in (*_OBJECTIVES, *self.counters)]

    @property
    def columns(self) -> list[str]:
        return [name for name in self.overview if name in _COLUMNS]

    @property
    def others(self) -> list[str]:
        return [name for name in self.overview if name not in _COLUMNS]

    @property
    def objectives(self) -> list[str]:
        return [name for name in self.result["cases"] if name in _OBJECTIVES]

    @property
    def counters(self) -> list[str]:
        """Scenarios in which counters are measured."""
        kinds = {row["scenario"]: row["kind"] for row in self._rows}
        return [name for name in self.result["cases"] if kinds.get(name) == COUNTERS]

    def in_scenarios(self, names: Iterable[str]) -> list[Line]:
        """Lines that were measured in one of these scenarios."""
        wanted = set(names)
        return [line for line in self.lines if wanted & set(line.cells)]

    def history(self, framework: str) -> dict[str, list[Line]]:
        """Settings of a framework that were measured in several releases, the oldest first."""
        settings: dict[str, list[Line]] = {}
        for line in self.lines:
            if line.framework == framework:
                settings.setdefault(line.setting, []).append(line)
        ordered = {name: sorted(lines, key=lambda line: _release(line.version)) for name, lines in settings.items()}
        return {name: lines for name, lines in ordered.items() if len(lines) > 1}

    @property
    def frameworks(self) -> list[str]:
        return list(dict.fromkeys(line.framework for line in self.lines))

    @property
    def verdicts(self) -> list[str]:
        """Every verdict without its factor, as a filter offers it."""
        return list(dict.fromkeys(name for row in self._rows for name in alternatives(row["verdict"])))

    @property
    def _rows(self) -> list[ConformanceRow]:
        return cast(list[ConformanceRow], self.result["rows"])

    @property
    def not_measured(self) -> list[NotMeasured]:
        return self.result.get("not_measured", [])

    @property
    def faults(self) -> list[Fault]:
        """The controls that compare an earlier release with the pinned one."""
        cells = {cell.row["id"]: cell for line in self.lines for cell in line.cells.values()}
        return [
            Fault(
                f"controls.{i}",
                control["title"],
                str(control["values"]["url"]),
                cells[str(control["values"]["before"])],
                cells[str(control["values"]["after"])],
            )
            for i, control in enumerate(self.result["controls"])
            if control["id"].startswith("fault-")
        ]

    def scenarios(self, kind: str, lines: Iterable[Line]) -> list[str]:
        """The scenarios in which these lines have a measurement of this kind, in the order of the result."""
        present = {name for line in lines for name in line.of(kind)}
        return [name for name in self.result["cases"] if name in present]

    def chosen(self, framework: str = "", verdict: str = "", scenario: str = "") -> list[Line]:
        """The lines with a measurement of this framework, verdict (whatever its factor) and scenario; "" for any."""
        lines = []
        for line in self.lines:
            cells = {
                name: cell
                for name, cell in line.cells.items()
                if scenario in ("", name) and (not verdict or verdict in alternatives(cell.row["verdict"]))
            }
            if cells and framework in ("", line.framework):
                lines.append(Line(line.framework, line.setting, line.version, line.cells if not scenario else cells))
        return lines


def _release(version: str) -> tuple[int, ...]:
    """Parts of a version as numbers, for their order."""
    return tuple(int(part) for part in version.split(".") if part.isdigit())


def as_csv(lines: Iterable[Line]) -> str:
    """One row a token coefficient, or a measurement without any; blank where there is none."""
    text = io.StringIO()
    writer = csv.writer(text)
    names = ("framework", "setting", "version", "scenario", "kind", "verdict", "rank", "microbatch", "coefficient")
    writer.writerow((*names, "residual", "met", "values"))
    for line in lines:
        for cell in line.cells.values():
            row = cell.row
            start = [row[name] for name in ("framework", "setting", "version", "scenario", "kind", "verdict")]
            end = [row["residual"], str(row["met"]).lower(), json.dumps(row["values"], ensure_ascii=False)]
            writer.writerows([*start, *where, *end] for where in _coefficients(row))
    return text.getvalue()


def _coefficients(row: ConformanceRow) -> Iterator[tuple[Any, Any, Any]]:
    if row["coefficients"] is None:
        yield "", "", ""
        return
    for r, rank in enumerate(row["coefficients"]):
        for k, coefficient in enumerate(rank):
            yield r, k, "" if coefficient is None else coefficient


def as_json(lines: Iterable[Line]) -> str:
    """The published rows of these lines, as they are."""
    return json.dumps([cell.row for line in lines for cell in line.cells.values()], ensure_ascii=False)


class Surprise(BaseModel):
    """Something that a reader would not expect, the public report that tells it, and the section that explains it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    text: InBoth
    report: str = ""
    chapter: str = ""


class FrameworkText(BaseModel):
    """What a framework's page says: its name, how to reach the global token mean, and what surprises.

    `objective`: what the recipe reaches, where it is not the global token mean or the full batch's gradient.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    recipe: InBoth
    objective: InBoth | None = None
    code: str = ""
    calculator: str = ""
    surprise: tuple[Surprise, ...] = ()


class Unmeasured(BaseModel):
    """What the laboratory has not looked at, and why."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    what: InBoth
    why: InBoth


class Group(BaseModel):
    """Frameworks that stand together in the matrix."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    title: InBoth
    frameworks: tuple[str, ...]


class Texts(BaseModel):
    """`content/conformance.toml`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    group: tuple[Group, ...]
    label: Mapping[str, InBoth]
    framework: Mapping[str, FrameworkText]
    verdict: Mapping[str, InBoth]
    unmeasured: tuple[Unmeasured, ...] = ()


def load_texts(content: Path) -> Texts:
    """Read the declarations; pydantic's ValidationError names what is wrong with them."""
    return Texts.model_validate(tomllib.loads((content / f"{NAME}.toml").read_text("utf-8")))
