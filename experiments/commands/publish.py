"""Turn a finished run into a published bag: BagIt 1.0 around it, provenance in it, and one atomic replacement.

The layout and the reader are in `app.evidence.bags`. Provenance is an in-toto Statement v1 with the SLSA provenance v1
predicate: every published file with its digest, the source files and inputs that could change a number with theirs,
the commit and the exact packages. It is not signed: it says where things come from, it does not prove who made them.

What is published comes from a clean checkout, so that the commit really names the sources. A publication that is
killed at any moment leaves the old bag whole: the new one is built beside it and exchanged with it in one step.
"""

import ctypes
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

from samestep.app.evidence.bags import (
    MANIFEST,
    PROVENANCE,
    TAG_FILES,
    TAG_MANIFEST,
    ConformanceRow,
    Json,
    Result,
    sha256_of,
)
from samestep.experiments.registry import ROOT, Experiment

PACKAGES = ("torch", "numpy", "safetensors")
STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "urn:samestep:experiment:1"
BUILDER = "urn:samestep:lab"


class RefusedError(RuntimeError):
    """A publication that must not be made, and why."""


# ---- the checkout -----------------------------------------------------------------------------------------------


def clean_commit(root: Path = ROOT) -> str:
    """The commit that the sources are at; raises RefusedError outside a checkout and for a dirty one.

    `content/evidence` may differ: it is what publishing changes.
    """
    if not (root / ".git").exists():
        raise RefusedError(f"{root} is no checkout: published evidence must name the commit it comes from")
    commit = _git(root, "rev-parse", "--verify", "HEAD").strip()
    changes = _git(root, "status", "--porcelain", "--untracked-files=all", "--", ".", ":(exclude)content/evidence")
    if changes:
        shown = changes.rstrip("\n").splitlines()
        more = f"\n  and {len(shown) - 10} more" if len(shown) > 10 else ""
        listed = "\n  ".join(shown[:10])
        raise RefusedError(f"the source tree has changes that no commit holds:\n  {listed}{more}")
    return commit


def _git(root: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True)
    except FileNotFoundError:
        raise RefusedError("git is not installed: published evidence must name the commit it comes from") from None
    except subprocess.CalledProcessError as error:
        raise RefusedError(f"git {arguments[0]} failed: {error.stderr.strip()}") from None
    return done.stdout


# ---- the bag ----------------------------------------------------------------------------------------------------


def publish(
    experiment: Experiment,
    made: Path,
    result: Result,
    folder: Path,
    *,
    commit: str,
    started: datetime,
    inputs: Sequence[Path] = (),
) -> Path:
    """Make a bag of the files in `made` and put it in place of the published one; raises RefusedError.

    `inputs`: files that the run read besides its sources, such as published weights.
    """
    if result["verdict"] != "holds":
        raise RefusedError(f"{experiment.name}: a failed run is not published")
    if absent := result.get("not_measured"):
        reasons = "\n  ".join(f"{each['framework']} {each['setting']}: {each['reason']}" for each in absent)
        raise RefusedError(f"{experiment.name}: what could not be measured here would be lost:\n  {reasons}")
    folder.mkdir(parents=True, exist_ok=True)
    tidy(folder, experiment.name)
    building = folder / f".{experiment.name}.{os.getpid()}"
    try:
        shutil.copytree(made, building / "data")
        statement = provenance(experiment, building, result, commit=commit, started=started, inputs=inputs)
        (building / PROVENANCE).write_text(json.dumps(statement, indent=1, ensure_ascii=False) + "\n", "utf-8")
        write_tags(building, result["question"]["en"])
        _flush(building)
        exchange(building, folder / experiment.name)
    except OSError as error:  # shutil.Error is one too
        shutil.rmtree(building, ignore_errors=True)
        raise RefusedError(f"{experiment.name}: cannot be written, the old bag stays: {error}") from None
    return folder / experiment.name


def write_tags(bag: Path, description: str) -> None:
    """`bagit.txt`, `bag-info.txt` and the two manifests of a folder that has its `data/`."""
    payload = sorted(file for file in (bag / "data").rglob("*") if file.is_file())
    size = sum(file.stat().st_size for file in payload)
    (bag / "bagit.txt").write_text("BagIt-Version: 1.0\nTag-File-Character-Encoding: UTF-8\n", "utf-8")
    information = {
        "Bagging-Date": datetime.now(UTC).date().isoformat(),
        "External-Description": description,
        "Payload-Oxum": f"{size}.{len(payload)}",
        "Bag-Software-Agent": f"samestep {version('samestep')}" if _installed() else "samestep",
    }
    (bag / "bag-info.txt").write_text("".join(f"{key}: {value}\n" for key, value in information.items()), "utf-8")
    _write_manifest(bag, MANIFEST, payload)
    _write_manifest(bag, TAG_MANIFEST, [bag / name for name in TAG_FILES if name != TAG_MANIFEST])


def _write_manifest(bag: Path, name: str, files: Sequence[Path]) -> None:
    lines = [f"{sha256_of(file)}  {file.relative_to(bag).as_posix()}\n" for file in files]
    (bag / name).write_text("".join(lines), "utf-8")


def _installed() -> bool:
    from importlib.metadata import PackageNotFoundError

    try:
        return bool(version("samestep"))
    except PackageNotFoundError:
        return False


def provenance(
    experiment: Experiment, bag: Path, result: Result, *, commit: str, started: datetime, inputs: Sequence[Path]
) -> Mapping[str, Any]:
    """The statement about every file in `data/` but itself."""
    files = sorted(file for file in (bag / "data").rglob("*") if file.is_file())
    parameters: dict[str, Json] = {"experiment": experiment.name, "processes": result["processes"]}
    if "seed" in result["setup"]:
        parameters["seed"] = result["setup"]["seed"]
    return {
        "_type": STATEMENT,
        "subject": [_resource(file.relative_to(bag).as_posix(), sha256_of(file)) for file in files],
        "predicateType": PREDICATE,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": parameters,
                "internalParameters": {"command": result["command"]},
                "resolvedDependencies": [
                    {"name": "commit", "digest": {"gitCommit": commit}},
                    *(_resource(relative_name(source), sha256_of(source)) for source in experiment.sources),
                    *(_resource(relative_name(place), sha256_of(place)) for place in inputs),
                    *({"uri": f"pkg:pypi/{name}@{release}"} for name, release in _packages(result)),
                    {"uri": f"pkg:generic/python@{platform.python_version()}"},
                ],
            },
            "runDetails": {
                "builder": {"id": BUILDER},
                "metadata": {
                    "startedOn": started.strftime("%Y-%m-%dT%H:%M:%SZ"),
                    "finishedOn": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
                },
            },
        },
    }


def _packages(result: Result) -> list[tuple[str, str]]:
    """Everybody's packages, and those that rows name as their own, in every version that was used."""
    own = {pair for row in result["rows"] for pair in cast(ConformanceRow, row).get("packages", {}).items()}
    return [*((name, version(name)) for name in PACKAGES), *sorted(each for each in own if each[0] not in PACKAGES)]


def _resource(name: str, digest: str) -> dict[str, Any]:
    return {"name": name, "digest": {"sha256": digest}}


def relative_name(place: Path) -> str:
    """The place as it is called in every checkout: never a path of this machine."""
    place = place.resolve()
    return place.relative_to(ROOT).as_posix() if place.is_relative_to(ROOT) else place.name


# ---- replacement ------------------------------------------------------------------------------------------------


def exchange(new: Path, published: Path) -> None:
    """Put `new` in the place of `published` in one step where the system can, and remove the old one."""
    if not published.exists():
        new.replace(published)
        return
    if _swap(new, published):
        shutil.rmtree(new)
        return
    aside = published.with_name(f".{published.name}.old")  # two steps: `tidy` finishes them if they are interrupted
    published.replace(aside)
    new.replace(published)
    shutil.rmtree(aside)


def tidy(folder: Path, name: str) -> None:
    """Undo what an interrupted publication left: bring an old bag back if it is the only one, drop half-built ones."""
    aside = folder / f".{name}.old"
    if aside.exists() and not (folder / name).exists():
        aside.replace(folder / name)
    for left in folder.glob(f".{name}.*"):
        shutil.rmtree(left)


def _swap(one: Path, other: Path) -> bool:
    """Exchange two folders atomically; False where the system or the file system has no such call."""
    names = os.fsencode(one), os.fsencode(other)
    library = ctypes.CDLL(None, use_errno=True)
    if sys.platform == "linux" and hasattr(library, "renameat2"):
        here, exchange_names = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
        return bool(library.renameat2(here, names[0], here, names[1], exchange_names) == 0)
    if sys.platform == "darwin" and hasattr(library, "renamex_np"):
        swap_names = 2  # RENAME_SWAP
        return bool(library.renamex_np(*names, swap_names) == 0)
    return False


def _flush(folder: Path) -> None:
    """Have every byte on the disk before the new bag gets the name of the old one."""
    for place in [*folder.rglob("*"), folder]:
        handle = os.open(place, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
