"""The README's recipe for a calculator and a chapter is all there is to it: a toy one passes in a copy of the tree."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from samestep.app.paths import cache_folder
from tests.kit import ROOT, lay_out_first_chapter

TOY = ROOT / "tests" / "recipe"
TREE = ("app", "content", "templates", "static", "experiments", "tests", ".src", "pyproject.toml", "README.md")
APPENDED = {"presets.toml", "start.toml", "symbols.toml"}
"""Files in which a calculator has an entry; all others of the toy are its own."""


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tree with the toy in it, as a repository of its own; what was compiled of it need not be compiled again."""
    root = tmp_path_factory.mktemp("copy")
    without = shutil.ignore_patterns("recipe")
    for name in TREE:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, root / name, symlinks=True, ignore=without)
        else:
            shutil.copy(ROOT / name, root)
    for file in filter(Path.is_file, TOY.rglob("*")):
        place = root / file.relative_to(TOY)
        assert place.exists() == (file.name in APPENDED), f"{place} stands in the tree"
        place.parent.mkdir(parents=True, exist_ok=True)
        with place.open("a", encoding="utf-8") as target:
            target.write(file.read_text("utf-8"))
    if (fonts := cache_folder() / "fonts").is_dir():  # of which the toy changes nothing
        shutil.copytree(fonts, root / "cache" / "fonts")
    subprocess.run(["git", "init", "--quiet"], cwd=root, check=True)
    subprocess.run(["git", "add", "app", "content", ":!**/__pycache__/**"], cwd=root, check=True)
    return root


def run(copy: Path, *command: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(copy / ".src"), "SAMESTEP_CACHE_DIR": str(copy / "cache")}
    return subprocess.run(
        [sys.executable, *command], cwd=copy, env=environment, capture_output=True, text=True, timeout=300, check=False
    )


def passed(copy: Path, tests: Sequence[str]) -> int:
    done = run(copy, "-m", "pytest", "-n", "0", "-q", "-p", "no:cacheprovider", *tests)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    return int(re.findall(r"(\d+) passed", done.stdout)[-1])


def test_the_readme_names_every_file_of_a_calculator_and_a_chapter() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    for file in filter(Path.is_file, TOY.rglob("*")):
        named = file.relative_to(TOY).as_posix().replace("global_batch", "NAME").replace("905-global-batch", "NN-slug")
        assert f"`{named}`" in readme, named


def test_a_book_takes_the_toy_chapter_with_its_checked_numbers(copy: Path) -> None:
    content = copy / "small"
    lay_out_first_chapter(content)
    for file in TOY.glob("content/*/*.md"):
        shutil.copy(file, content / file.parent.name)
    check = ("-m", "samestep.app.book.chapters", str(content))
    done = run(copy, *check)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 chapters" in done.stdout
    spoilt = content / "en" / "905-global-batch.md"
    spoilt.write_text(spoilt.read_text("utf-8").replace("[64]", "[65]"), "utf-8")
    refused = run(copy, *check)
    assert refused.returncode != 0
    assert "905-global-batch.md" in refused.stdout + refused.stderr


def test_the_house_and_its_own_tests_program_panel_and_preset_take_the_toy(copy: Path) -> None:
    """And the whole book with the toy chapter in it."""
    files = ["tests/test_house.py", "tests/calculators/test_global_batch.py", "tests/instruments", "tests/book"]
    toys = "test_house or global_batch or Replicas or every_calculator or symptom or book_itself"
    assert passed(copy, [*files, "-k", toys]) > 40
