"""The worked cases of an audit: their own partitions, and the differences that were computed elsewhere."""

import json
from typing import Any

import pytest

from experiments.audit import Report, audit
from experiments.audit.plans import Plan
from experiments.registry import ROOT

FILES = ROOT / "tests" / "experiments" / "audit" / "files"
CASES = {case["id"]: case for case in json.loads((ROOT / "tests" / "cases.json").read_text("utf-8"))["cases"]}


def audited(name: str, case: str) -> Report:
    partition = CASES[case]["inputs"]["partition"]
    most = max(len(rank) for rank in partition)
    cells = tuple(tuple(map(tuple, rank)) + ((),) * (most - len(rank)) for rank in partition)
    return audit(FILES / f"{name}.py", plan=[Plan(case, cells)])


def differences(report: Report) -> dict[str, float | None]:
    return {stage.stage: stage.max_abs_difference for stage in report.plans[0].stages}


def expected(case: str) -> dict[str, Any]:
    found: dict[str, Any] = CASES[case]["expected"]
    return found


def test_a_mean_over_each_rank_is_another_gradient_on_1_and_3_samples() -> None:
    report, known = audited("linear_rank_means", "A-01"), expected("A-01")
    assert (report.verdict, report.first_difference, report.cause) == ("different", "gradient", "replica_equal")
    for stage in ("samples", "loss", "gradient", "parameters"):
        assert differences(report)[stage] == pytest.approx(known["max_abs_difference"][stage], abs=1e-9), stage


def test_the_same_rule_is_not_found_out_on_equal_counts() -> None:
    assert audited("linear_rank_means", "A-04").verdict == "same"


def test_a_global_count_gives_the_same_update_in_unequal_parts() -> None:
    report = audited("linear_clipped", "A-02")
    assert report.verdict == "same", report
    assert report.plans[0].reference is not None
    assert report.plans[0].reference.norms == pytest.approx([expected("A-02")["one_process"]["norm"]], abs=1e-9)


def test_a_clip_in_every_microstep_is_another_gradient() -> None:
    report, known = audited("linear_clipped_each_time", "A-03"), expected("A-03")
    assert (report.verdict, report.first_difference, report.cause) == ("different", "gradient", "per_microbatch_clip")
    for stage in ("samples", "loss", "clipped_gradient", "parameters"):
        assert differences(report)[stage] == pytest.approx(known["max_abs_difference"][stage], abs=1e-9), stage
