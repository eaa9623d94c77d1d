"""Files as readers brought them, each with one fault in its first line or none: what is planted is what is named.

`judged/expected.toml` says what each plants. Here is one of every mechanism; all of them are audited
on demand, in `tests/conformance/test_judged_files.py`.
"""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from samestep.experiments.audit import Report
from tests.experiments.audit.asked import ask

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


REPORTS = ask({name: FOLDER / f"{name}.py" for name in NAMES})


@pytest.mark.parametrize("name", NAMES)
def test_what_is_planted_is_what_is_named(name: str) -> None:
    assert right(REPORTS[name], JUDGED[name]), REPORTS[name]


def test_of_a_wrong_term_in_a_right_sum_the_term_is_named() -> None:
    for name, operation in (("a15_aux_over_p", "Sum"), ("w43_kl_per_seq", "Mean"), ("w45_moe_aux_local", "Sum")):
        (plan,) = REPORTS[name].plans
        assert plan.finding is not None
        assert plan.finding.term is not None
        assert plan.finding.term.startswith(operation), name


def test_a_finding_shows_the_line_that_it_is_about_and_what_to_write() -> None:
    (plan,) = REPORTS["w32_unscale_missing_noref"].plans
    assert plan.finding is not None
    (site,) = plan.finding.sites
    assert "clip_grad_norm_(model.parameters(), 0.05)" in site.line
    lines = (FOLDER / "w32_unscale_missing_noref.py").read_text("utf-8").splitlines()
    assert lines[int(site.place.partition(":")[2]) - 1].strip() == site.line
    assert plan.finding.edit is not None
    assert "unscale_" in plan.finding.edit["en"]


def test_the_update_that_differs_first_is_named() -> None:
    assert REPORTS["w11_no_zero_grad"].plans[0].update == 2
    assert REPORTS["v04_first_wrong_second_right"].plans[0].update == 1


def test_weights_of_a_sample_share_are_the_shares_themselves() -> None:
    """The step divides by a constant of its window, so that no column of the basis is a mean."""
    (plan,) = REPORTS["d6_seq_mean_mb"].plans
    assert plan.finding is not None
    assert plan.finding.weights is not None
    assert sum(plan.finding.weights.observed, ()) == pytest.approx([n / 24 for n in (2, 6, 5, 3, 7, 1)], abs=1e-9)


def test_whose_samples_never_arrive_is_said() -> None:
    assert "rank 1: 0, 1" in str(REPORTS["a3_hsdp"])


def test_nothing_is_said_of_a_wrapper_that_is_not_there() -> None:
    for name in ("a3_hsdp", "x05_tp_no_bwd_reduce"):
        assert "DistributedDataParallel" not in str(REPORTS[name])


def test_a_fault_of_some_tensors_names_them_and_whose_samples_are_missing() -> None:
    text = str(REPORTS["n04_norm_of_rank_0"])
    assert "rank 1, microbatch 0" in text
    assert "Only in the gradient of norm.weight, norm.bias" in text


def test_what_parameters_are_multiplied_by_between_two_backwards_is_said() -> None:
    assert "multiplied by 0.99, 2 times" in str(REPORTS["n01_decay_inside"])


def test_samples_whose_backward_comes_too_late_are_named() -> None:
    assert "sample 8, 9, 10, 11, 12, 23" in str(REPORTS["n05_backward_after_step"])


EVIDENCE = {
    "n08_moved_inside": "at the parameters that each backward met add up to what was observed",
    "n13_skipped_alone": "rank 0: 1, rank 1: 0",
    "n14_overflow_on_rank_1": "The scaler of rank 1 found a gradient that is not finite",
    "n15_lookahead_each_rank": "P = 2 interpolations of weight 0.4",
    "n16_average_each_rank": "P = 2 averages of weight 0.01",
    "n17_imaginary_part_halved": "Only ph.imag; all others are right",
    "n18_imaginary_part_forgotten": "different gradients of ph.imag; of ph.real",
    "n20_own_count_after_sum": "1, 1.08 times rank 0's",
    "n22_updates_averaged": "within its step, the updates",
    "n26_rank_0_for_all": "all ranks take the parameters of rank 0",
}


@pytest.mark.parametrize("name", EVIDENCE)
def test_what_shows_the_cause_is_said_with_its_numbers(name: str) -> None:
    assert EVIDENCE[name] in str(REPORTS[name])


def test_a_norm_of_summands_that_were_taken_for_shards_is_told() -> None:
    assert "not shards of it" in str(REPORTS["n11_norm_of_parts"])
