"""The worked cases of an audit: their own partitions, and the differences that were computed elsewhere."""

import json
from typing import Any

import pytest

from samestep.experiments.audit.running.plans import Plan
from samestep.experiments.audit.telling.report import PlanReport
from samestep.experiments.registry import ROOT
from tests.experiments.audit.asked import ask

FILES = ROOT / "tests" / "experiments" / "audit" / "files"
CASES = {case["id"]: case for case in json.loads((ROOT / "tests" / "cases.json").read_text("utf-8"))["cases"]}


def plan(case: str) -> Plan:
    """The case's partition; a rank with fewer microbatches than the others gets empty ones."""
    partition = CASES[case]["inputs"]["partition"]
    most = max(len(rank) for rank in partition)
    return Plan(case, tuple(tuple(map(tuple, rank)) + ((),) * (most - len(rank)) for rank in partition))


BOTH = ("linear_rank_means", "linear_clipped")
ON_TWO = {
    (file, case): ask({case: FILES / f"{file}.py"}, plan=(plan(case),))
    for file in BOTH
    for case in ("A-01", "A-02", "A-04")
}
"""Both rules on all partitions over two processes."""
ON_ONE = ask({"A-03": FILES / "linear_clipped_each_time.py"}, plan=(plan("A-03"),))


def on_two(file: str, case: str) -> PlanReport:
    (report,) = ON_TWO[file, case][case].plans
    return report


def differences(report: PlanReport) -> dict[str, float | None]:
    return {stage.stage: stage.max_abs_difference for stage in report.stages}


def expected(case: str) -> dict[str, Any]:
    found: dict[str, Any] = CASES[case]["expected"]
    return found


def test_a_mean_over_each_rank_is_another_gradient_on_1_and_3_samples() -> None:
    report, known = on_two("linear_rank_means", "A-01"), expected("A-01")["max_abs_difference"]
    assert (report.verdict, report.first_difference, report.cause) == ("different", "gradient", "replica_equal")
    for stage in ("samples", "loss", "gradient", "parameters"):
        assert differences(report)[stage] == pytest.approx(known[stage], abs=1e-9), stage


def test_the_same_rule_is_not_found_out_on_equal_counts() -> None:
    assert on_two("linear_rank_means", "A-04").verdict == "same"


@pytest.mark.parametrize("case", ["A-01", "A-02", "A-04"])
def test_a_global_count_gives_the_same_update_in_all_parts(case: str) -> None:
    assert on_two("linear_clipped", case).verdict == "same"


def test_every_process_finds_the_norm_of_the_whole_gradient() -> None:
    report, known = on_two("linear_clipped", "A-02"), expected("A-02")
    assert report.reference is not None
    assert report.reference.norms == pytest.approx([known["one_process"]["norm"]], abs=1e-9)
    for rank in report.ranks:
        assert rank.norms == pytest.approx([known["P_processes"]["norm"]], abs=1e-9)


def test_a_clip_in_every_microstep_is_another_gradient() -> None:
    (report,), known = ON_ONE["A-03"].plans, expected("A-03")
    assert (report.verdict, report.first_difference, report.cause) == ("different", "gradient", "per_microbatch_clip")
    for stage in ("samples", "loss", "clipped_gradient", "parameters"):
        assert differences(report)[stage] == pytest.approx(known["max_abs_difference"][stage], abs=1e-9), stage
