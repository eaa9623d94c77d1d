"""`samestep-lab audit --example`: what it writes is the same update under every plan."""

from pathlib import Path

import pytest

from samestep.experiments.registry import ROOT
from tests.experiments.audit.asked import ask

EXAMPLES = sorted((ROOT / "experiments" / "audit" / "examples").glob("[!_]*.py"))
NAMES = [example.stem for example in EXAMPLES]
REPORTS = ask(dict(zip(NAMES, EXAMPLES, strict=True)), plan="all")


def test_every_kind_of_step_has_its_example() -> None:
    assert NAMES == ["accumulate", "amp", "clip", "contrastive", "ddp", "fsdp2"]


@pytest.mark.parametrize("name", NAMES)
def test_an_example_is_the_same_update_under_every_plan(name: str) -> None:
    assert [(plan.name, plan.verdict) for plan in REPORTS[name].plans] == [
        ("ragged", "same"),
        ("contiguous", "same"),
        ("empty-rank", "same"),
        ("tail", "same"),
    ], REPORTS[name]


@pytest.mark.parametrize("name", NAMES)
def test_the_samples_of_an_example_are_recognised(name: str) -> None:
    for plan in REPORTS[name].plans:
        assert {stage.stage: stage.status for stage in plan.stages}["samples"] == "same", plan.name


@pytest.mark.parametrize("example", EXAMPLES, ids=NAMES)
def test_an_example_imports_nothing_of_ours(example: Path) -> None:
    text = example.read_text("utf-8")
    assert "import app" not in text
    assert "experiments" not in text
