"""What was measured on this machine, kept until a source that can change it changes.

Families are measured one at a time, some in an environment that takes a while to make; publishing puts them together.
What is kept is what the processes said, before anybody judged it. Its name holds a digest of everything that the
measurement comes from: the adapter and all modules of this project that its process imports (what they do, not what
their comments say), the framework's entry in the table, its pins. So nothing old can pass for new, and rows are judged
by today's code every time.
"""

import ast
import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from samestep.app.paths import cache_folder, write_whole
from samestep.experiments.conformance.families import Family
from samestep.experiments.conformance.frameworks import Framework, Release
from samestep.experiments.conformance.pairs import Report

CHILD = "samestep.experiments.conformance.child"
PACKAGE = "samestep"
ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "experiments" / "conformance" / "frameworks" / "__init__.py"
_BY_TASK = ("measured", "failed", "unavailable")


def load(place: Path) -> Report | None:
    """What was measured of exactly this, or None."""
    if not place.is_file():
        return None
    kept: dict[str, Any] = json.loads(place.read_text("utf-8"))
    for name in _BY_TASK:
        kept[name] = {(setting, scenario): value for setting, scenario, value in kept[name]}
    kept["tasks"] = [(setting, scenario) for setting, scenario in kept["tasks"]]
    return Report(**kept)


def save(report: Report, place: Path) -> None:
    """Keep what was measured completely; a disk that does not take it loses nothing but time."""
    report.environment["measured"] = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    kept = asdict(report)
    for name in _BY_TASK:
        kept[name] = [[*task, value] for task, value in kept[name].items()]
    write_whole(place, json.dumps(kept).encode())


def place(framework: Framework, release: Release | None, family: Family | None) -> Path:
    """Where this is kept: to be asked before it is measured, for sources may change meanwhile."""
    packages = (family.pins, family.alone, family.version) if family else ()
    digest = hashlib.sha256(repr((framework, release, packages)).encode())
    for source in sources(CHILD, framework.module):
        digest.update(_meaning(source))
    version = release.version if release else "pinned"
    return cache_folder() / "measured" / f"{framework.id}-{version}-{digest.hexdigest()[:16]}.json"


def sources(*modules: str) -> list[Path]:
    """The files of these modules, and of all modules of this project that they import, in the order of their names.

    Without the table of frameworks: what it says of the one that is measured is in the name of what is kept.
    """
    found: dict[str, Path] = {}
    left = list(modules)
    while left:
        module = left.pop()
        place = _file(module)
        if module not in found and place not in (None, TABLE):
            found[module] = place
            left += _imported(place)
    return [found[name] for name in sorted(found)]


def _meaning(source: Path) -> bytes:
    """What a module does, without comments and docstrings."""
    tree = ast.parse(source.read_text("utf-8"))
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [each for each in body if not _said(each)]  # type: ignore[attr-defined]
    return ast.dump(tree).encode()


def _said(statement: ast.AST) -> bool:
    """A string that is a statement: words for a reader."""
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _imported(place: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(place.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] == PACKAGE:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _file(module: str) -> Path | None:
    """None for what is not a module of this project."""
    first, _, rest = module.partition(".")
    if first != PACKAGE or not rest:
        return None
    place = ROOT.joinpath(*rest.split("."))
    files = (place.with_suffix(".py"), place / "__init__.py")
    return next((file for file in files if file.is_file()), None)
