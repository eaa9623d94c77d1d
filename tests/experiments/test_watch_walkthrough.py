"""The walk through a watch: the weights are the rules' own, by fractions, and the scripts know nothing of watch."""

import ast
from fractions import Fraction
from typing import Any

import pytest

from samestep.experiments.registry import ROOT, experiments

NAME = "watch_walkthrough"
PLACE = ROOT / "experiments" / "watch" / "walkthrough"
COUNTS = ([[14, 2, 10], [4, 6, 22]], [[16, 4, 14], [10, 16, 4]])


def shares(lab: Any, update: int, name: str) -> list[list[float]]:
    found: list[list[float]] = lab.rows(NAME)[f"update{update}-{name}"]["values"]["shares"]
    return found


def test_every_check_holds(lab: Any) -> None:
    assert lab.results[NAME]["verdict"] == "holds", lab.output


@pytest.mark.parametrize("update", [0, 1])
@pytest.mark.parametrize("name", ["ddp-mean", "fsdp2-mean"])
def test_a_mean_of_means_gives_a_token_its_part_of_a_sixth(lab: Any, update: int, name: str) -> None:
    total = sum(map(sum, COUNTS[update]))
    expected = [[float(Fraction(total, 6 * n)) for n in rank] for rank in COUNTS[update]]
    assert shares(lab, update, name) == [pytest.approx(rank, abs=1e-6) for rank in expected]


@pytest.mark.parametrize("update", [0, 1])
def test_the_global_count_gives_every_token_the_same(lab: Any, update: int) -> None:
    assert shares(lab, update, "ddp-global") == [[1.0] * 3] * 2


def test_the_scripts_import_nothing_of_ours() -> None:
    for place in PLACE.glob("*.py"):
        for node in ast.walk(ast.parse(place.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom | ast.Import):
                names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [each.name for each in node.names]
                assert not any(name.startswith("samestep") for name in names), place


def test_the_watched_scripts_are_among_the_sources_of_the_evidence() -> None:
    assert set(PLACE.glob("*.py")) <= set(experiments()[NAME].sources)
