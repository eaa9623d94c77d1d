"""The training that made the weights: its size, its tokenizer, its text, and ten steps that come out the same again."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from samestep.app.evidence.bags import Library
from samestep.experiments import corpus
from samestep.experiments.registry import ROOT
from samestep.experiments.tensors import describe, load
from samestep.experiments.tiny.tokenizer import Tokenizer

EARLY = 10


@pytest.fixture(scope="module")
def published() -> Any:
    library = Library(ROOT / "content" / "evidence")
    if "train_tiny" not in library.names():
        pytest.skip("train_tiny is not published yet: `samestep-lab publish train_tiny`")
    return library.bag("train_tiny")


def test_a_short_training_holds(run: Callable[..., Any], stand_in_corpus: Path, tmp_path: Path) -> None:
    done = run("train", "--steps", "6", "--corpus", str(stand_in_corpus), folder=tmp_path)
    assert done.code == 0, done.output
    result = done.results["train_tiny"]
    assert result["setup"]["parameters"] == 298_176
    assert result["setup"]["vocabulary"] == 387
    assert [step for step, _ in result["curve"]["train"]] == [1, 2, 3, 4, 5, 6]
    assert result["rows"][0]["values"]["bit_identical"]  # interrupted and resumed


def test_ten_retrained_steps_equal_the_recorded_ones(published: Any, run: Callable[..., Any], tmp_path: Path) -> None:
    recorded = published.result
    stopped = run("train", "--until", "4", folder=tmp_path)
    assert (stopped.code, stopped.results) == (0, {}), stopped.output
    assert "stopped at step 4 of 800" in stopped.output
    resumed = run("train", "--until", str(EARLY), folder=tmp_path)
    assert resumed.code == 0, resumed.output
    assert "resumed at step 4" in resumed.output
    state = json.loads((tmp_path / "train_tiny.state" / "rank0" / "state.json").read_text())
    losses = [loss for _, loss in recorded["curve"]["train"][:EARLY]]
    assert state["losses"] == pytest.approx(losses, abs=1e-10)
    early = recorded["setup"]["early"]
    assert early["step"] == EARLY
    assert state["early"]["norm"] == pytest.approx(early["norm"], rel=1e-12)
    if torch.backends.cpu.get_cpu_capability() == recorded["environment"]["cpu_capability"]:
        assert state["early"]["canonical_sha256"] == early["canonical_sha256"]


def test_the_published_model_tokenizer_and_curve(published: Any) -> None:
    result = published.result
    weights = load(published.folder / "data" / "weights.safetensors")
    assert sum(array.size for array in weights.values()) == 298_176
    assert describe(weights) == result["tensors"]["weights.safetensors"]
    tokens = Tokenizer.from_json(published.read("data/tokenizer.json").decode())
    assert len(tokens) == 387
    for document in corpus.read():
        assert tokens.decode(tokens.encode(document.text)) == document.text
    curve = result["curve"]
    assert len(curve["train"]) == result["setup"]["steps"] == 800
    assert curve["validation"][0][1] == pytest.approx(math.log(387), abs=0.1)
    assert curve["validation"][-1][1] < 4
    assert 60_000 <= result["setup"]["corpus"]["bytes"] <= 200_000


def test_a_changed_or_missing_document_is_refused(stand_in_corpus: Path, tmp_path: Path) -> None:
    for place in stand_in_corpus.iterdir():
        (tmp_path / place.name).write_bytes(place.read_bytes())
    assert len(corpus.read(tmp_path)) == 6
    victim = tmp_path / "en-10-invented.md"
    victim.write_text(victim.read_text() + "x")
    with pytest.raises(corpus.CorpusError, match=r"en-10-invented.md has changed"):
        corpus.read(tmp_path)
    victim.unlink()
    with pytest.raises(corpus.CorpusError, match="no file"):
        corpus.read(tmp_path)
    with pytest.raises(corpus.CorpusError, match="--freeze-corpus"):
        corpus.read(tmp_path / "nowhere")


def test_a_corpus_of_the_wrong_size_or_without_a_chapter_is_not_frozen(tmp_path: Path) -> None:
    for language in ("zh", "en"):
        (tmp_path / language).mkdir()
        for number in (10, 20):
            (tmp_path / language / f"{number}-short.md").write_text("short")
    with pytest.raises(corpus.CorpusError, match="not all there"):
        corpus.freeze(tmp_path, tmp_path / "frozen")
    for language in ("zh", "en"):
        (tmp_path / language / "70-short.md").write_text("short")
    with pytest.raises(corpus.CorpusError, match="30 bytes"):
        corpus.freeze(tmp_path, tmp_path / "frozen")
