"""Which experiments there are, and what their numbers depend on, found without importing any of them.

An experiment is a module of this package that says `QUESTION` at its top level; its name is the module's. What it
declares there in plain constants is read from the source, so that `list` and `verify` stay free of torch.
"""

import ast
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from app.evidence import Text

PACKAGE = Path(__file__).resolve().parent
ROOT = PACKAGE.parent


@dataclass(frozen=True)
class Experiment:
    """`processes`: how many it takes unless told otherwise. `needs`: experiments whose published files it reads.

    `alone`: it takes long, and ranks that it does not use would have to wait; so it gets processes of its own.
    """

    name: str
    question: Text
    processes: int
    needs: tuple[str, ...]
    corpus: bool
    alone: bool

    @property
    def module(self) -> str:
        return f"experiments.{self.name}"

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
    for place in sorted(PACKAGE.glob("*.py")):
        constants = _constants(place)
        if "QUESTION" in constants:
            found[place.stem] = Experiment(
                name=place.stem,
                question=cast(Text, constants["QUESTION"]),
                processes=cast(int, constants["PROCESSES"]),
                needs=cast(tuple[str, ...], constants.get("NEEDS", ())),
                corpus=cast(bool, constants.get("CORPUS", False)),
                alone=cast(bool, constants.get("ALONE", False)),
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
        if target in ("QUESTION", "PROCESSES", "NEEDS", "CORPUS", "ALONE"):
            constants[target] = ast.literal_eval(value)
    return constants


def _collect(name: str, found: dict[str, Path]) -> None:
    place = PACKAGE / f"{name}.py"
    if name in found or not place.is_file():
        return
    found[name] = place
    for node in ast.walk(ast.parse(place.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            package, _, module = node.module.partition(".")
            if package == "experiments":
                for imported in [module] if module else [alias.name for alias in node.names]:
                    _collect(imported, found)
