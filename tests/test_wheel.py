"""The wheel in an environment of its own: it owns one name, and a project with its own `app/` and `experiments/` keeps
both."""

import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from tests.kit import ROOT

FOLDERS = ("app", "content", "experiments", "static", "templates")
OWN = """
import app
import experiments
from samestep import audit
from samestep.app.calculators import registry


def test_their_packages_are_theirs_and_ours_are_ours():
    assert app.WHOSE == experiments.WHOSE == "the reader's"
    assert "replica_ledger" in registry()


def test_their_step_is_still_the_same_update():
    assert audit("my_step.py").verdict == "same"
"""


def fetched(address: str) -> str:
    with urlopen(address, timeout=30) as answer:  # any status but a good one is an exception
        text: str = answer.read().decode()
    return text


@dataclass(frozen=True)
class Installed:
    """An environment with the wheel in it, and a project with packages of its own."""

    wheel: Path
    commands: Path
    project: Path

    def run(self, *command: str) -> str:
        """What a command of the environment prints, run in the project."""
        hidden = {"PYTHONPATH", "VIRTUAL_ENV", "PYTEST_ADDOPTS"}
        environment = {name: value for name, value in os.environ.items() if name not in hidden}
        program, *arguments = command
        done = subprocess.run(
            [self.commands / program, *arguments],
            cwd=self.project, env=environment, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The wheel as `pip install .` builds it; its dependencies are those of the environment that runs the tests."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    build = [*pip, "wheel", str(ROOT), "--no-deps", "--wheel-dir", str(folder)]
    built = subprocess.run(build, capture_output=True, text=True, timeout=300, check=False)
    if "No matching distribution found for hatchling" in built.stderr:
        pytest.skip("building a wheel needs hatchling: no package index can be reached")
    assert built.returncode == 0, built.stderr
    (wheel,) = folder.glob("samestep-*.whl")
    environment = folder / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    python = environment / "bin" / "python"
    subprocess.run([*pip, "--python", python, "install", "--no-deps", "--no-index", wheel], check=True)
    (packages,) = environment.glob("lib/python*/site-packages")
    theirs = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "of_the_tests.pth").write_text("\n".join(theirs))
    project = folder / "project"
    for name in ("app", "experiments"):
        (project / name).mkdir(parents=True)
        (project / name / "__init__.py").write_text('WHOSE = "the reader\'s"\n')
    (project / "test_own.py").write_text(OWN)
    return Installed(wheel, environment / "bin", project)


def test_nothing_is_installed_beside_the_one_name(installed: Installed) -> None:
    show = [sys.executable, "-m", "pip", "--python", installed.commands / "python", "show", "-f", "samestep"]
    shown = subprocess.run(show, capture_output=True, text=True, check=True).stdout
    files = re.findall(r"^  (\S+)$", shown.partition("Files:")[2], re.MULTILINE)
    assert len(files) > 100
    scripts = {file for file in files if file.startswith("../")}
    assert {Path(script).name for script in scripts} == {"samestep", "samestep-lab"}
    assert {file.split("/")[0] for file in set(files) - scripts} == {
        "samestep",
        installed.wheel.name[:14] + ".dist-info",
    }


def test_the_wheel_holds_the_files_of_the_tree_and_no_others(installed: Installed) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *FOLDERS],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    tree = {f"samestep/{name}" for name in listed.stdout.splitlines() if (ROOT / name).is_file()}
    with zipfile.ZipFile(installed.wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name and not name.endswith("/")}
    assert packed == tree | {"samestep/__init__.py"}


def test_a_project_with_packages_of_these_names_keeps_both_from_pytest_too(installed: Installed) -> None:
    (installed.project / "my_step.py").write_text(installed.run("samestep-lab", "audit", "--example"))
    whose = "import app, experiments, samestep.app, samestep.experiments; print(app.WHOSE, experiments.WHOSE)"
    assert installed.run("python", "-c", whose) == "the reader's the reader's\n"
    assert "2 passed" in installed.run("python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist")


def test_it_serves_its_chapters_templates_and_files(
    installed: Installed, start_server: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    running = start_server(checkout=installed.project, command=[str(installed.commands / "samestep")])
    for path in ("/zh/parallel-correctness", "/en/calculators/info_nce", "/zh/search?q=theta", "/api/replica_ledger"):
        assert fetched(running.url + path)
    (style,) = re.findall(r'href="([^"]+/css/\w+\.css)"', fetched(running.url + "/en/"))
    assert fetched(running.url + style)
