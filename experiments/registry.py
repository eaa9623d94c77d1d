"""Which experiments there are, and what their numbers depend on, found without importing any of them.

An experiment is a module of this package that says `QUESTION` at its top level, or a package in it whose `__init__`
does; its name is the module's. What it declares there in plain constants is read from the source, so that `list` and
`verify` stay free of torch.
"""

import ast
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from samestep.app.evidence.bags import Text

PACKAGE = Path(__file__).resolve().parent
ROOT = PACKAGE.parent


@dataclass(frozen=True)
class Experiment:
    """`processes`: how many it takes unless told otherwise. `needs`: experiments whose published files it reads.

    `alone`: it takes long, and ranks that it does not use would have to wait; so it gets processes of its own.
    `training`: it makes what others read, and takes minutes; `run --all` leaves it out.
    `launcher`: the module whose `run` starts these processes itself; None: `ranks.launch` starts them.
    """

    name: str
    question: Text
    processes: int
    needs: tuple[str, ...]
    corpus: bool
    alone: bool
    launcher: str | None
    training: bool

    @property
    def module(self) -> str:
        return f"samestep.experiments.{self.name}"

    @property
    def sources(self) -> list[Path]:
        """Files that can change a number: the module and what it imports from this package, and the frozen corpus."""
        found: dict[str, Path] = {}
        _collect(self.name, found)
        corpus = sorted((PACKAGE / "corpus").glob("*")) if self.corpus else []
        return [*sorted(found.values()), *corpus]


def experiments() -> dict[str, Experiment]:
    """All experiments by name, in alphabetical order."""
    found = {}
    places = {place.stem: place for place in PACKAGE.glob("*.py")}
    places |= {place.parent.name: place for place in PACKAGE.glob("*/__init__.py")}
    for name, place in sorted(places.items()):
        constants = _constants(place)
        if "QUESTION" in constants:
            found[name] = Experiment(
                name=name,
                question=cast(Text, constants["QUESTION"]),
                processes=cast(int, constants["PROCESSES"]),
                needs=cast(tuple[str, ...], constants.get("NEEDS", ())),
                corpus=cast(bool, constants.get("CORPUS", False)),
                alone=cast(bool, constants.get("ALONE", False)),
                launcher=cast(str | None, constants.get("LAUNCHER")),
                training=cast(bool, constants.get("TRAINING", False)),
            )
    return found


def _constants(place: Path) -> dict[str, object]:
    """Module-level `NAME = literal` assignments of a source file."""
    constants = {}
    for statement in ast.parse(place.read_text("utf-8")).body:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            target, value = statement.targets[0].id, statement.value
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name) and statement.value:
            target, value = statement.target.id, statement.value
        else:
            continue
        if target in ("QUESTION", "PROCESSES", "NEEDS", "CORPUS", "ALONE", "LAUNCHER", "TRAINING"):
            constants[target] = ast.literal_eval(value)
    return constants


def _collect(name: str, found: dict[str, Path]) -> None:
    """Add a module, or every module of a package, and what they import."""
    places = [PACKAGE / f"{name}.py", *sorted((PACKAGE / name).rglob("*.py"))]
    for place in (place for place in places if place.is_file()):
        key = place.relative_to(PACKAGE).as_posix()
        if key in found:
            continue
        found[key] = place
        for node in ast.walk(ast.parse(place.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
                parts = node.module.split(".")
                if parts[:2] == ["samestep", "experiments"]:
                    for imported in parts[2:3] or [alias.name for alias in node.names]:
                        _collect(imported, found)
