"""One run of every experiment, shared by all tests of this folder: starting processes is what costs time."""

import contextlib
import io
import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from samestep.app.evidence.bags import Library, Result, Row
from samestep.experiments import __main__ as command, corpus
from samestep.experiments.conformance.frameworks import TIER_0
from samestep.experiments.ranks.progress import Progress
from samestep.experiments.registry import ROOT
from samestep.experiments.watch import launch as watch_launch
from tests import warm

HERE = Path(__file__).resolve().parent


@pytest.fixture
def rank_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ranks import the modules of this folder, such as `lab_ranks`."""
    monkeypatch.setenv("PYTHONPATH", str(HERE))


@dataclass(frozen=True)
class Lab:
    """The results of a run by name, what it printed, its exit code and how many seconds it took."""

    folder: Path
    results: dict[str, Result]
    output: str
    code: int
    seconds: float

    def rows(self, name: str) -> dict[str, Row]:
        return {row["id"]: row for row in self.results[name]["rows"]}


def run_lab(*arguments: str, folder: Path) -> Lab:
    """Run the command line here, keeping its results in `folder`."""
    began, output = time.monotonic(), io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output), pytest.MonkeyPatch.context() as patch:
        patch.setattr(command, "Progress", partial(Progress, output))  # it took the standard error when it was imported
        patch.setattr(watch_launch, "subprocess", warm.starter())
        code = command.main([*arguments, "--out", str(folder)])
    places = sorted(folder.glob("*/result.json"))
    results = {place.parent.name: json.loads(place.read_text("utf-8")) for place in places}
    return Lab(folder, results, output.getvalue(), code, time.monotonic() - began)


@dataclass(frozen=True)
class Material:
    """Weights and text for the tests. `published`: they are the real ones."""

    weights: Path
    corpus: Path
    published: bool


@pytest.fixture(scope="session")
def stand_in_corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Invented text in two languages, frozen as the book's chapters are."""
    content, folder = tmp_path_factory.mktemp("content"), tmp_path_factory.mktemp("corpus")
    chance = random.Random(7)
    words = {
        "en": ("gradient", "update", "batch", "token", "mean", "sum", "the", "of", "and", "is", "divides", "every"),
        "zh": ("梯度", "更新", "批次", "标签", "进程", "均值", "求和", "的", "与", "是", "每个", "权重", "损失"),
    }
    for language, vocabulary in words.items():
        (content / language).mkdir()
        joint = " " if language == "en" else ""
        for number in corpus.CHAPTERS:
            lines = [joint.join(chance.choices(vocabulary, k=14)) + ".\n" for _ in range(150)]
            (content / language / f"{number}-invented.md").write_text("".join(lines), "utf-8")
    corpus.freeze(content, folder)
    return folder


@pytest.fixture(scope="session")
def material(stand_in_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Material:
    """The published weights and the frozen text; before there are any, a short training on invented text."""
    library = Library(ROOT / "content" / "evidence")
    if "train_tiny" in library.names():
        return Material(library.bag("train_tiny").folder / "data", corpus.FOLDER, published=True)
    out = tmp_path_factory.mktemp("training")
    lab = run_lab("train", "--steps", "12", "--corpus", str(stand_in_corpus), folder=out)
    assert lab.code == 0, lab.output
    return Material(out / "train_tiny", stand_in_corpus, published=False)


@pytest.fixture(scope="session")
def run() -> Callable[..., Lab]:
    """`run("train", "--steps", "12", folder=…)`: the command line with `--out`."""
    return run_lab


@pytest.fixture(scope="session")
def lab(material: Material, tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """Every experiment but the training, in four launches, and of the frameworks those that need torch alone."""
    places = ("--weights", str(material.weights), "--corpus", str(material.corpus))
    frameworks = [argument for name in TIER_0 for argument in ("--framework", name)]
    return run_lab("run", "--all", *places, *frameworks, folder=tmp_path_factory.mktemp("lab"))
