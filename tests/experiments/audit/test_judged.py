"""Files as readers brought them, each with one fault in its first line or none: what is planted is what is named.

`judged/expected.toml` says what each plants. Here is one of every mechanism, from one launch; all of them are audited
on demand, in `tests/conformance/test_judged_files.py`.
"""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from samestep.experiments.audit import Report, audit_many

FOLDER = Path(__file__).parent / "judged"
JUDGED: dict[str, dict[str, Any]] = tomllib.loads((FOLDER / "expected.toml").read_text("utf-8"))
NAMES = [name for name, each in JUDGED.items() if each.get("default")]


def right(report: Report, expected: dict[str, Any]) -> bool:
    """The verdict, and of a fault its cause, factor and first stage; `anywhere`: the stage is chance, as in a race."""
    if report.verdict != expected["verdict"]:
        return False
    if report.failure:
        return expected["says"] in str(report.failure)
    stage = report.first_difference if expected.get("anywhere") else expected.get("first_difference")
    found = (report.cause, report.factor, report.first_difference)
    return found == (expected.get("cause"), expected.get("factor"), stage)


@pytest.fixture(scope="module")
def reports() -> dict[str, Report]:
    return dict(zip(NAMES, audit_many([FOLDER / f"{name}.py" for name in NAMES]), strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_what_is_planted_is_what_is_named(reports: dict[str, Report], name: str) -> None:
    assert right(reports[name], JUDGED[name]), reports[name]


def test_of_a_wrong_term_in_a_right_sum_the_term_is_named(reports: dict[str, Report]) -> None:
    for name, operation in (("a15_aux_over_p", "Sum"), ("w43_kl_per_seq", "Mean"), ("w45_moe_aux_local", "Sum")):
        (plan,) = reports[name].plans
        assert plan.finding is not None
        assert plan.finding.term is not None
        assert plan.finding.term.startswith(operation), name


def test_a_finding_shows_the_line_that_it_is_about_and_what_to_write(reports: dict[str, Report]) -> None:
    (plan,) = reports["w32_unscale_missing_noref"].plans
    assert plan.finding is not None
    (site,) = plan.finding.sites
    assert "clip_grad_norm_(model.parameters(), 0.05)" in site.line
    lines = (FOLDER / "w32_unscale_missing_noref.py").read_text("utf-8").splitlines()
    assert lines[int(site.place.partition(":")[2]) - 1].strip() == site.line
    assert plan.finding.edit is not None
    assert "unscale_" in plan.finding.edit["en"]


def test_the_update_that_differs_first_is_named(reports: dict[str, Report]) -> None:
    assert reports["w11_no_zero_grad"].plans[0].update == 2
    assert reports["v04_first_wrong_second_right"].plans[0].update == 1


def test_weights_of_a_sample_share_are_the_shares_themselves(reports: dict[str, Report]) -> None:
    """The step divides by a constant of its window, so that no column of the basis is a mean."""
    (plan,) = reports["d6_seq_mean_mb"].plans
    assert plan.finding is not None
    assert plan.finding.weights is not None
    assert sum(plan.finding.weights.observed, ()) == pytest.approx([n / 24 for n in (2, 6, 5, 3, 7, 1)], abs=1e-9)


def test_whose_samples_never_arrive_is_said(reports: dict[str, Report]) -> None:
    assert "rank 1: 0, 1" in str(reports["a3_hsdp"])


def test_nothing_is_said_of_a_wrapper_that_is_not_there(reports: dict[str, Report]) -> None:
    for name in ("a3_hsdp", "x05_tp_no_bwd_reduce"):
        assert "DistributedDataParallel" not in str(reports[name])


def test_a_fault_of_some_tensors_names_them_and_whose_samples_are_missing(reports: dict[str, Report]) -> None:
    text = str(reports["n04_norm_of_rank_0"])
    assert "rank 1, microbatch 0" in text
    assert "Only in the gradient of norm.weight, norm.bias" in text


def test_what_parameters_are_multiplied_by_between_two_backwards_is_said(reports: dict[str, Report]) -> None:
    assert "multiplied by 0.99, 2 times" in str(reports["n01_decay_inside"])


def test_samples_whose_backward_comes_too_late_are_named(reports: dict[str, Report]) -> None:
    assert "sample 8, 9, 10, 11, 12, 23" in str(reports["n05_backward_after_step"])


def test_a_norm_of_summands_that_were_taken_for_shards_is_told(reports: dict[str, Report]) -> None:
    assert "not shards of it" in str(reports["n11_norm_of_parts"])
