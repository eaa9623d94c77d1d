"""The walk through an audit: what was planted is what is named, and the chapter shows the real file and output."""

import ast
import re
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from samestep.experiments.registry import ROOT, experiments

NAME = "audit_walkthrough"
PLACE = ROOT / "experiments" / "audit" / "walkthrough"
COUNTS = ([8, 12, 11], [9, 13, 7])
PLANTED = {
    "rank-means": ("different", "gradient", "replica_equal", None),
    "sum-over-n": ("different", "gradient", "scale", "1/P"),
    "zeroed-inside": ("different", "gradient", "dropped_microbatch", None),
}
SILENT = ("same", None, None, None)


def values(lab: Any, name: str) -> Any:
    return lab.rows(NAME)[name]["values"]


def said(lab: Any, name: str) -> tuple[Any, ...]:
    found = values(lab, name)
    return tuple(found[key] for key in ("verdict", "first_difference", "cause", "factor"))


def test_every_check_holds(lab: Any) -> None:
    assert lab.results[NAME]["verdict"] == "holds", lab.output


@pytest.mark.parametrize("file", PLANTED)
def test_the_fault_that_was_planted_is_the_one_that_is_named(lab: Any, file: str) -> None:
    assert said(lab, f"ragged-{file}") == PLANTED[file]
    assert lab.rows(NAME)[f"ragged-{file}"]["max_abs_difference"]["gradient"] > 1e-6


def test_nothing_is_said_of_the_right_file(lab: Any) -> None:
    assert said(lab, "ragged-global-count") == SILENT
    differences = lab.rows(NAME)["ragged-global-count"]["max_abs_difference"]
    assert max(differences[quantity] for quantity in ("gradient", "parameters")) <= 2e-10


def test_equal_cells_hide_the_fault_that_unequal_ones_show(lab: Any) -> None:
    assert said(lab, "contiguous-rank-means") == SILENT
    assert len({count for rank in values(lab, "contiguous-rank-means")["counts"] for count in rank}) == 1


def test_two_of_three_faults_leave_the_loss_as_it_is(lab: Any) -> None:
    loss = {file: lab.rows(NAME)[f"ragged-{file}"]["max_abs_difference"]["loss"] for file in PLANTED}
    assert {file for file, difference in loss.items() if difference > 2e-10} == {"rank-means"}


def test_the_weights_are_those_that_each_rule_gives(lab: Any) -> None:
    """By the rules themselves: n/N is right, n/(P·n_r) where every rank divides by its own, 0 where a cell is lost."""
    assert values(lab, "ragged-rank-means")["counts"] == list(map(list, COUNTS))
    whole = sum(map(sum, COUNTS))
    right = [count / whole for rank in COUNTS for count in rank]
    own = [count / (2 * sum(rank)) for rank in COUNTS for count in rank]
    last = [count / whole if k == 2 else 0 for rank in COUNTS for k, count in enumerate(rank)]
    for file, rule in (("rank-means", own), ("zeroed-inside", last)):
        found = values(lab, f"ragged-{file}")
        assert list(chain(*found["right_weights"])) == pytest.approx(right, abs=1e-12)
        assert list(chain(*found["weights"])) == pytest.approx(rule, abs=1e-9)
        assert list(chain(*found["weights"])) != pytest.approx(right, abs=1e-4)


def test_the_audited_files_are_among_the_sources_of_the_evidence() -> None:
    assert set(PLACE.glob("*.py")) <= set(experiments()[NAME].sources)


# ---- the chapter ------------------------------------------------------------------------------------------------


def section(lang: str) -> str:
    text = (ROOT / "content" / lang / "50-first-difference.md").read_text("utf-8")
    found = re.search(r"\{#sec-audit .*?(?=\n\{#sec-)", text, re.DOTALL)
    assert found is not None
    return found[0]


def block(lang: str, language: str, number: int = 0) -> str:
    blocks: list[str] = re.findall(rf"^```{language}\n(.*?)\n```$", section(lang), re.DOTALL | re.MULTILINE)
    return blocks[number]


def functions(source: str) -> dict[str, str]:
    """The functions of a file without annotations, docstrings and comments."""
    found = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef):
            node.returns = None
            for argument in node.args.args:
                argument.annotation = None
            found[node.name] = ast.unparse(node)
    return found


@pytest.mark.parametrize("lang", ["zh", "en"])
def test_the_chapter_shows_the_audited_file(lang: str) -> None:
    right, wrong = (functions((PLACE / f"{name}.py").read_text("utf-8")) for name in ("global_count", "rank_means"))
    assert functions(block(lang, "python")) == right | wrong
    assert right["step"] != wrong["step"]


@pytest.mark.parametrize("lang", ["zh", "en"])
def test_the_chapter_shows_what_the_audit_prints(lab: Any, lang: str) -> None:
    assert block(lang, "text") == (lab.folder / NAME / f"rank_means.{lang}.txt").read_text("utf-8").rstrip("\n")


def test_the_three_lines_for_a_test_suite_fail_with_the_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the chapter gives them, in both languages alike; on the wrong file, written there as the chapter shows it."""
    assert block("zh", "python", 1) == block("en", "python", 1)
    (tmp_path / "my_step.py").write_text(block("en", "python"), "utf-8")
    monkeypatch.chdir(tmp_path)
    test: dict[str, Any] = {}
    exec(block("en", "python", 1), test)
    with pytest.raises(AssertionError, match="Every rank counts the same"):
        test["test_my_step_is_still_the_same_update"]()
