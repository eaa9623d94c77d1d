"""Check published evidence: offline in seconds without torch, or by running the experiments again.

Offline: every file has the promised digest and nothing is missing or extra; the bag is a bag; the provenance speaks of
these files; the sources and inputs that it names are still the same (else the evidence is stale); every recorded
verdict follows from the recorded numbers; tensors have their recorded digests; the wiki's calculators still agree.

Again: the same experiments run once more, and every number and tensor is compared with the published one.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

from samestep.app.evidence.bags import (
    AGREES,
    PROVENANCE,
    RESULT,
    SCHEMA,
    Bag,
    ConformanceRow,
    Json,
    Result,
    Row,
    met,
    sha256_of,
)
from samestep.app.paths import folder
from samestep.experiments import calculated
from samestep.experiments.commands.publish import BUILD_TYPE, PREDICATE, STATEMENT, relative_name
from samestep.experiments.registry import ROOT, Experiment
from samestep.experiments.tensors import describe, largest_difference, load


def problems(bag: Bag, experiment: Experiment | None) -> Iterator[str]:
    """What is wrong with a published bag, one readable line each; nothing for a good one."""
    for file in bag.damaged:
        yield f"{file.path}: {file.complaint['en']}"
    if bag.damaged:
        return
    layout = list(_layout(bag))
    yield from layout
    if layout:
        return
    try:
        statement = json.loads(bag.read(PROVENANCE))
        yield from _statement(bag, statement)
        if experiment is None:
            yield "no experiment of this name exists any more"
        else:
            yield from (f"stale: {change}" for change in changes(statement, experiment))
        yield from _result(bag)
    except (KeyError, TypeError, ValueError) as error:  # whole, but not written by this project's publisher
        yield f"cannot be understood: {type(error).__name__} {error}"


def stale(bag: Bag, experiment: Experiment) -> list[str]:
    """Which sources or inputs changed since publication; the bag must be whole."""
    return list(changes(json.loads(bag.read(PROVENANCE)), experiment))


def _layout(bag: Bag) -> Iterator[str]:
    if not bag.read("bagit.txt").startswith(b"BagIt-Version: 1.0\n"):
        yield "bagit.txt: not a bag of version 1.0"
    payload = [file for file in bag.files if file.path.startswith("data/")]
    oxum = f"{sum(file.size for file in payload)}.{len(payload)}"
    if bag.info.get("Payload-Oxum") != oxum:
        yield f"bag-info.txt: Payload-Oxum is {bag.info.get('Payload-Oxum')}, but the payload has {oxum}"
    for needed in (RESULT, PROVENANCE):
        if needed not in {file.path for file in payload}:
            yield f"{needed}: not in the bag"


def _statement(bag: Bag, statement: Mapping[str, Any]) -> Iterator[str]:
    kinds = (statement["_type"], statement["predicateType"], statement["predicate"]["buildDefinition"]["buildType"])
    if kinds != (STATEMENT, PREDICATE, BUILD_TYPE):
        yield f"{PROVENANCE}: not a statement of the expected kind"
    subjects = {subject["name"]: subject["digest"]["sha256"] for subject in statement["subject"]}
    held = {file.path: file.found for file in bag.files if file.path.startswith("data/") and file.path != PROVENANCE}
    if subjects != held:
        yield f"{PROVENANCE}: speaks of other files than the bag holds"


def changes(statement: Mapping[str, Any], experiment: Experiment) -> Iterator[str]:
    """Sources and inputs that differ from those that the provenance names."""
    resolved = statement["predicate"]["buildDefinition"]["resolvedDependencies"]
    named = {each["name"]: each["digest"]["sha256"] for each in resolved if "sha256" in each.get("digest", {})}
    for name, digest in named.items():
        place = _place_of(name)
        if not place.is_file():
            yield f"{name} is gone"
        elif sha256_of(place) != digest:
            yield f"{name} has changed"
    for source in experiment.sources:
        if relative_name(source) not in named:
            yield f"{relative_name(source)} is new"


def _place_of(name: str) -> Path:
    """Where a checkout or an installed wheel keeps the file of this name."""
    first, _, rest = name.partition("/")
    return folder("content") / rest if first == "content" else ROOT / name


def _result(bag: Bag) -> Iterator[str]:
    result = bag.result
    if (result["schema"], result["name"], result["verdict"]) != (SCHEMA, bag.name, "holds"):
        yield f"{RESULT}: schema {result['schema']}, name {result['name']}, verdict {result['verdict']}"
    for row in result["rows"]:
        if not row["met"] or not met(row["expected"], row["max_abs_difference"], row.get("agrees", AGREES)):
            yield f"{RESULT}: row {row['id']} does not do what it was expected to do"
    for control in result["controls"]:
        if not control["met"]:
            yield f"{RESULT}: control {control['id']} does not hold"
    for name, recorded in result["tensors"].items():
        if describe(load(bag.folder / "data" / name)) != recorded:
            yield f"data/{name}: its tensors have other digests than {RESULT} records"
    for row_id, difference in (calculated.agreement(bag.name, result["setup"], result["rows"]) or {}).items():
        if not difference <= calculated.TOLERANCE:
            yield f"{RESULT}: row {row_id} differs from today's calculator by {difference:.2g}"


# ---- again ------------------------------------------------------------------------------------------------------


class Comparison(NamedTuple):
    """A repeated run beside the published one. `largest` is over all numbers and tensors; `wrong` lists the rest.

    `left_out`: what one of the two machines could not measure, so that nothing is said of it.
    """

    identical: bool
    largest: float
    where: str
    tolerance: float
    wrong: list[str]
    left_out: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        return not self.wrong and self.largest <= self.tolerance

    def __str__(self) -> str:
        return self._outcome + (f"; not compared: {', '.join(self.left_out)}" if self.left_out else "")

    @property
    def _outcome(self) -> str:
        if self.identical:
            return "bit-identical"
        if self.holds:
            return (
                f"within tolerance (largest difference {self.largest:.2g} at {self.where}, {self.tolerance:g} allowed)"
            )
        away = [f"{self.where} differs by {self.largest:.2g}"] if self.largest > self.tolerance else []
        return "different: " + "; ".join([*self.wrong[:5], *away])


def compare(bag: Bag, again: Path) -> Comparison:
    """Compare the files of a repeated run in `again` with the bag's. Digests and environment do not decide."""
    new = cast(Result, json.loads((again / "result.json").read_text("utf-8")))
    old, new, left_out = in_common(bag.result, new)
    names = {file.path.removeprefix("data/") for file in bag.files if file.path.startswith("data/")}
    names -= {"provenance.json", "result.json"}
    made = {file.name for file in again.iterdir()} - {"result.json"}
    wrong = [f"{name} is in one of the two runs only" for name in sorted(names ^ made)]
    found = list(_differences(_measured(old), _measured(new), ""))
    identical = not wrong and _measured(old) == _measured(new)
    for name in sorted(names & made):
        one, other = bag.folder / "data" / name, again / name
        if sha256_of(one) == sha256_of(other):
            continue
        identical = False
        if name.endswith(".safetensors"):
            found.append((largest_difference(load(one), load(other)), name))
        else:
            wrong.append(f"{name} has other bytes")
    wrong += [f"{where} is not the same" for difference, where in found if difference == float("inf")]
    largest, where = max((each for each in found if each[0] < float("inf")), default=(0.0, ""))
    return Comparison(identical, largest, where, old["tolerance"]["rerun"], wrong, left_out)


def in_common(old: Result, new: Result) -> tuple[Result, Result, tuple[str, ...]]:
    """Two results without the settings of frameworks that only one of them has, and what these are.

    Not every machine has every framework, in the same version; what both have measured has to be the same.
    """
    ours, theirs = _subjects(old), _subjects(new)
    if not ours and not theirs:
        return old, new, ()
    both = ours & theirs
    left_out = sorted({f"{framework} {version}" for framework, version, _ in ours ^ theirs})
    controls = {each["id"] for each in old["controls"]} & {each["id"] for each in new["controls"]}
    parts = [
        {
            **result,
            "rows": [row for row in result["rows"] if "framework" not in row or _subject(row) in both],
            "controls": [control for control in result["controls"] if control["id"] in controls],
        }
        for result in (old, new)
    ]
    return cast(Result, parts[0]), cast(Result, parts[1]), tuple(left_out)


def _subjects(result: Result) -> set[tuple[str, str, str]]:
    return {_subject(row) for row in result["rows"] if "framework" in row}


def _subject(row: Row) -> tuple[str, str, str]:
    """Framework, version and setting of a row of the conformance lab."""
    own = cast(ConformanceRow, row)
    return own["framework"], own["version"], own["setting"]


def _measured(result: Result) -> Json:
    """What a repeated run must give again: not where it ran."""
    parts = ("verdict", "processes", "setup", "rows", "controls", "tensors", "curve")
    return {part: cast(Json, result.get(part)) for part in parts}


def _differences(old: Json, new: Json, where: str) -> Iterator[tuple[float, str]]:
    """(difference, place) of every number, infinite where two things cannot be compared as numbers and differ."""
    if isinstance(old, dict) and isinstance(new, dict) and old.keys() == new.keys():
        for key in old:
            if not key.endswith(("sha256", "bit_identical")):
                yield from _differences(old[key], new[key], f"{where}.{key}".lstrip("."))
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, (one, other) in enumerate(zip(old, new, strict=True)):
            yield from _differences(one, other, f"{where}.{_name(one, index)}")
    elif _number(old) and _number(new):
        yield abs(cast(float, old) - cast(float, new)) / max(1.0, abs(cast(float, old))), where
    elif old != new:
        yield float("inf"), where


def _number(value: Json) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _name(entry: Json, index: int) -> str:
    return str(entry["id"]) if isinstance(entry, dict) and "id" in entry else str(index)


def names_or_all(names: Iterable[str], known: Iterable[str], published: Iterable[str]) -> list[str]:
    """The named ones, or everything that exists or is published."""
    return list(dict.fromkeys(names)) or sorted({*known, *published})
