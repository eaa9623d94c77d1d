"""Other releases of a framework, installed beside the pinned one: `--version transformers==4.50.3`.

pip itself says which packages the release needs otherwise than they are installed (`pip install --dry-run --report`);
these, and nothing that fits as it is, go into a folder of the cache that the children have in front of their path.
So torch is installed once, and nothing in the environment is replaced.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from samestep.app.paths import cache_folder
from samestep.experiments.conformance.frameworks import FRAMEWORKS, Framework, Release


class CannotMeasureError(RuntimeError):
    """Nothing of what was asked for can be measured here, or a release cannot be had, and why."""


def named(text: str, among: Iterable[Framework]) -> list[tuple[Framework, Release]]:
    """The release of `NAME==VERSION`, or of several such pins, the framework's first, with commas: of every framework
    `among` these that comes with that package.

    A release that `frameworks` lists comes with the pins that it lists; a framework that has an environment of its own
    has no other releases. Raises CannotMeasureError where nothing does.
    """
    pins = tuple(each.strip() for each in text.split(","))
    name, _, version = pins[0].partition("==")
    found = []
    for framework in among:
        if framework.packages[0] == name and version:
            listed = [each for each in framework.releases if each.version == version and len(pins) == 1]
            if listed or not framework.family:  # beside a family's pins only what has an environment of its own
                found.append((framework, listed[0] if listed else Release(pins)))
    if not found:
        known = dict.fromkeys(each.packages[0] for each in FRAMEWORKS.values())
        raise CannotMeasureError(f"{text} is no release of a framework here; there are {', '.join(known)}")
    return found


def place(release: Release) -> Path:
    """Where its packages are, or would be."""
    name = "_".join(release.pins).replace("==", "-")
    return cache_folder() / "releases" / f"{name}-py{sys.version_info.major}{sys.version_info.minor}"


def install(release: Release) -> Path:
    """Install it, once, and give its folder; raises CannotMeasureError with pip's last words."""
    target = place(release)
    if target.is_dir():
        return target
    building = target.with_name(f"{target.name}.partial")
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir(parents=True)
    missing = json.loads(_pip("--dry-run", "--quiet", "--report", "-", *release.pins))["install"]
    wanted = [f"{each['metadata']['name']}=={each['metadata']['version']}" for each in missing]
    _pip("--no-deps", "--quiet", "--target", str(building), *(wanted or release.pins))
    building.replace(target)
    return target


def _pip(*arguments: str) -> str:
    command = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--no-input", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise CannotMeasureError(
            f"pip could not install {' '.join(arguments[-3:])}: {lines[-1] if lines else 'no reason'}"
        )
    return done.stdout
