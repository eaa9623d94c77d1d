"""What pages show of a published result: its rows case by case and path by path, and those that a chapter chose.

A row compares several quantities. Its *decisive* one is that with the largest difference among those that behave as
the row as a whole is expected to: of a path whose loss agrees while its gradient must differ, a gradient. Templates
find everything by the dotted path that it has in `data/result.json`, positions of lists being numbers.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, cast

from samestep.app.contract.paths import NoSuchStepError, leaves, value_at
from samestep.app.evidence.bags import (
    PROVENANCE,
    SCHEMA,
    Bag,
    Expectation,
    Json,
    Result,
    Row,
    Text,
    UnknownEvidenceError,
)
from samestep.app.rendering.environment import number
from samestep.app.rendering.scales import decades

SUMMARY = 12
"""So many rows are shown one by one where a chapter chose none; more are summed up by path."""
DIGEST = "sha256"


class Mark(NamedTuple):
    """A point on the axis of differences: the difference in `name` and what was expected of it; None: undefined."""

    name: str
    expected: Expectation
    difference: float | None


@dataclass(frozen=True)
class Entry:
    """A row and its dotted path, `rows.3`."""

    place: str
    row: Row

    @property
    def quantity(self) -> str:
        """The decisive one: the first of those that are undefined or have the largest difference."""
        row = self.row
        decisive = [name for name, expected in row["expected"].items() if expected == row["expectation"]]
        return max(decisive or row["expected"], key=lambda name: _size(row["max_abs_difference"][name]), default="")

    @property
    def difference(self) -> float | None:
        """The decisive difference; None when it is undefined."""
        return self.row["max_abs_difference"].get(self.quantity)

    @property
    def marks(self) -> list[Mark]:
        """One for every quantity."""
        differences = self.row["max_abs_difference"]
        return [Mark(name, expected, differences[name]) for name, expected in self.row["expected"].items()]

    @property
    def weight(self) -> tuple[int, float]:
        """How much this row says of its path: one that must differ more than one that agrees, undefined ones least."""
        return ("undefined", "agrees", "differs").index(self.row["expectation"]), _size(self.difference)


def _size(difference: float | None) -> float:
    return float("inf") if difference is None else difference


@dataclass(frozen=True)
class Case:
    """All rows of one fixture; `number` counts from 1."""

    name: str
    number: int
    title: Text
    entries: tuple[Entry, ...]

    @property
    def quantities(self) -> list[str]:
        """What its rows compare, each once."""
        return list(dict.fromkeys(name for entry in self.entries for name in entry.row["max_abs_difference"]))

    @property
    def plain(self) -> list[str]:
        """Keys of values that are numbers, words and lists of them."""
        return self._keys(lambda key, value: not (_is_digest(key) or _is_record(value)))

    @property
    def records(self) -> list[str]:
        """Keys of values with an entry for every process, each of which has keys of its own."""
        return self._keys(lambda key, value: _is_record(value))

    @property
    def digests(self) -> list[str]:
        return self._keys(lambda key, value: _is_digest(key))

    def fields(self, key: str) -> list[str]:
        """The keys of the records under `key`."""
        lists = [entry.row["values"].get(key) for entry in self.entries]
        records = [record for one in lists if isinstance(one, list) for record in one if isinstance(record, dict)]
        return list(dict.fromkeys(field for record in records for field in record))

    def _keys(self, wanted: Callable[[str, Json], bool]) -> list[str]:
        pairs = [pair for entry in self.entries for pair in entry.row["values"].items()]
        return list(dict.fromkeys(key for key, value in pairs if value is not None and wanted(key, value)))


def _is_digest(key: str) -> bool:
    return key.endswith(DIGEST)


def _is_record(value: Json) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(entry, dict) for entry in value)


def exact(value: Json) -> str:
    """A value in full, for scripts."""
    if isinstance(value, str):
        return value
    return repr(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False)


def measured(value: Json) -> str:
    """A measured value as a reader sees it: 6 significant digits, and 6 decimals from 0.1 on.

    Vectors of one element look like that element.
    """
    if isinstance(value, list):
        return "[" + ", ".join(measured(_only(each)) for each in value) + "]"
    if isinstance(value, float) and 0.1 <= abs(value) < 1e6:
        text = f"{value:.6f}".rstrip("0").rstrip(".")
        return text.replace("-", "\N{MINUS SIGN}")
    if isinstance(value, str) and value not in ("-inf", "inf", "nan"):
        return value
    return exact(value) if isinstance(value, bool | dict) else number(value)


def _only(value: Json) -> Json:
    while isinstance(value, list) and len(value) == 1:
        value = value[0]
    return value


@dataclass(frozen=True)
class Exhibit:
    """A result, arranged for pages."""

    result: Result
    exact = staticmethod(exact)
    measured = staticmethod(measured)

    @cached_property
    def entries(self) -> tuple[Entry, ...]:
        return tuple(Entry(f"rows.{i}", row) for i, row in enumerate(self.result["rows"]))

    @cached_property
    def cases(self) -> tuple[Case, ...]:
        """In the order in which the result names them, without those that have no row."""
        by_case = {
            name: tuple(entry for entry in self.entries if entry.row["case"] == name) for name in self.result["cases"]
        }
        known = [name for name, entries in by_case.items() if entries]
        return tuple(Case(name, i, self.result["cases"][name], by_case[name]) for i, name in enumerate(known, start=1))

    @cached_property
    def paths(self) -> dict[str, tuple[Entry, ...]]:
        """Every path that was tried, with its rows in all cases."""
        by_path = {
            name: tuple(entry for entry in self.entries if entry.row["path"] == name) for name in self.result["paths"]
        }
        return {name: entries for name, entries in by_path.items() if entries}

    @property
    def met(self) -> tuple[int, int]:
        """How many rows and how many controls did what was expected of them."""
        rows, controls = self.result["rows"], self.result["controls"]
        return sum(row["met"] for row in rows), sum(control["met"] for control in controls)

    @cached_property
    def bounds(self) -> tuple[float, float]:
        """Whole powers of ten round every difference that is not 0: the ends of the axis."""
        differences = [value for row in self.result["rows"] for value in row["max_abs_difference"].values()]
        return decades(differences, 1e-17, 10.0)

    def marks(self, entries: Sequence[Entry]) -> list[Mark]:
        """The decisive difference of each of these rows, by the name of its case."""
        return [Mark(entry.row["case"], entry.row["expectation"], entry.difference) for entry in entries]

    def weightiest(self, entries: Sequence[Entry]) -> Entry:
        """The row of a path that says most of it."""
        return max(entries, key=lambda entry: entry.weight)

    def chosen(self, rows: Sequence[str]) -> tuple[Entry, ...]:
        """The rows of these ids in this order. Without ids all, unless there are more than `SUMMARY`: then none."""
        if rows:
            by_id = {entry.row["id"]: entry for entry in self.entries}
            return tuple(by_id[row] for row in rows if row in by_id)
        return self.entries if len(self.entries) <= SUMMARY else ()

    def titles(self, lang: str) -> dict[str, str]:
        """The cases in words."""
        return {name: title["zh" if lang == "zh" else "en"] for name, title in self.result["cases"].items()}

    def lost(self, rows: Sequence[str]) -> list[str]:
        """Ids that a chapter chose and the result does not have."""
        known = {entry.row["id"] for entry in self.entries}
        return [row for row in rows if row not in known]

    def leaves(self, part: str) -> Iterator[tuple[str, Json]]:
        """Every value below a dotted path with its own path; a list without objects counts as one value."""
        return ((leaf.path, leaf.value) for leaf in leaves(self.at(part), part, lists=False))

    def at(self, path: str) -> Json:
        """The value at a dotted path; None where there is none."""
        try:
            return cast(Json, value_at(self.result, path))
        except NoSuchStepError:
            return None

    def single(self, path: str) -> str:
        """The path of a vector's only element, or the path itself."""
        value = self.at(path)
        while isinstance(value, list) and len(value) == 1:
            path, value = f"{path}.0", value[0]
        return path


def exhibit_of(bag: Bag) -> Exhibit | None:
    """The bag's result; None when it is not there, cannot be trusted, or is of another schema."""
    try:
        result = bag.result
    except (UnknownEvidenceError, ValueError):
        return None
    return Exhibit(result) if isinstance(result, dict) and result.get("schema") == SCHEMA else None


@dataclass(frozen=True)
class Origin:
    """Where a bag says that it comes from: the commit, and when its run began and ended (UTC, ISO 8601)."""

    commit: str
    started: str
    finished: str


def origin(bag: Bag | None) -> Origin | None:
    """What the provenance states; None when it is not there or cannot be trusted."""
    try:
        predicate = json.loads(bag.read(PROVENANCE))["predicate"] if bag else None
    except (UnknownEvidenceError, ValueError):
        return None
    if predicate is None:
        return None
    dependencies = predicate["buildDefinition"]["resolvedDependencies"]
    commits = [each["digest"]["gitCommit"] for each in dependencies if "gitCommit" in each.get("digest", {})]
    times = predicate["runDetails"]["metadata"]
    return Origin("".join(commits[:1]), times["startedOn"], times["finishedOn"])
