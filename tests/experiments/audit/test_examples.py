"""`samestep-lab audit --example`: what it writes is the same update under every plan."""

from pathlib import Path

import pytest

from samestep.experiments.audit import Report, audit_many
from samestep.experiments.registry import ROOT

EXAMPLES = sorted((ROOT / "experiments" / "audit" / "examples").glob("[!_]*.py"))
NAMES = [example.stem for example in EXAMPLES]


@pytest.fixture(scope="module")
def reports() -> dict[str, Report]:
    return dict(zip(NAMES, audit_many(EXAMPLES, plan="all"), strict=True))


def test_every_kind_of_step_has_its_example() -> None:
    assert NAMES == ["accumulate", "amp", "clip", "contrastive", "ddp", "fsdp2"]


@pytest.mark.parametrize("name", NAMES)
def test_an_example_is_the_same_update_under_every_plan(reports: dict[str, Report], name: str) -> None:
    assert [(plan.name, plan.verdict) for plan in reports[name].plans] == [
        ("ragged", "same"),
        ("contiguous", "same"),
        ("empty-rank", "same"),
        ("tail", "same"),
    ], reports[name]


@pytest.mark.parametrize("name", NAMES)
def test_the_samples_of_an_example_are_recognised(reports: dict[str, Report], name: str) -> None:
    for plan in reports[name].plans:
        assert {stage.stage: stage.status for stage in plan.stages}["samples"] == "same", plan.name


@pytest.mark.parametrize("example", EXAMPLES, ids=NAMES)
def test_an_example_imports_nothing_of_ours(example: Path) -> None:
    text = example.read_text("utf-8")
    assert "import app" not in text
    assert "experiments" not in text
