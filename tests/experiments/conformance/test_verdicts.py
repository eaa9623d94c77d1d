"""A row is met when the numbers and the name are those that are expected, and not otherwise."""

import math
from typing import Any

import pytest

from samestep.experiments.conformance import verdicts
from samestep.experiments.conformance.scenarios import SCENARIOS
from samestep.experiments.conformance.verdicts import Judged, Seen

B_MEAN = [[[0.125] * 2, [0.03125] * 8], [[0.05] * 5, [0.25]]]


def judge(seen: Seen, expected: Any, scenario: str = "B", *others: Seen | None) -> Judged:
    return verdicts.judge([seen, *others], SCENARIOS[scenario], expected, 1e-10)


def coefficients(tokens: Any = B_MEAN, residual: float = 0.0) -> dict[str, Any]:
    return {"kind": "coefficients", "tokens": tokens, "residual": residual, "later": None}


def test_the_expected_rule_is_met_and_another_is_not() -> None:
    right, wrong = judge(coefficients(), "microbatch_equal"), judge(coefficients(), "replica_equal")
    assert verdicts.met(right)
    assert right.expectation == "differs"  # from the global token mean
    assert right.differences["from_global_mean"] == 0.1875
    assert not verdicts.met(wrong)
    assert not verdicts.met(judge(coefficients(), "global_token_mean"))


def test_cells_may_be_expected_where_no_rule_has_a_name() -> None:
    cells = ((0.125, 0.03125), (0.05, 0.25))
    assert verdicts.met(judge(coefficients(), cells))
    assert not verdicts.met(judge(coefficients(), ((0.125, 0.03125), (0.05, 0.26))))


def test_without_expectation_only_the_residual_can_fail() -> None:
    assert verdicts.met(judge(coefficients(), None))
    assert not verdicts.met(judge(coefficients(residual=0.8), None))


def test_an_update_that_tokens_do_not_explain_is_no_rule() -> None:
    judged = judge(coefficients(residual=0.8), "microbatch_equal")
    assert judged.verdict == "other"
    assert not verdicts.met(judged)


def test_ranks_that_see_different_updates_are_not_met() -> None:
    same, other = coefficients(), coefficients([[[0.125] * 2, [0.03125] * 8], [[0.05] * 5, [0.26]]])
    assert verdicts.met(judge(coefficients(), "microbatch_equal", "B", same))
    assert not verdicts.met(judge(coefficients(), "microbatch_equal", "B", other))
    assert verdicts.met(judge(coefficients(), "microbatch_equal", "B", None))  # a rank that cannot see


def test_nan_is_undefined_and_met_only_if_expected() -> None:
    poisoned = coefficients([[[math.nan] * 2, [0.03125] * 8], [[0.05] * 5, [0.25]]], math.nan)
    assert judge(poisoned, "undefined").coefficients == [[None, 0.03125], [pytest.approx(0.05), 0.25]]
    assert verdicts.met(judge(poisoned, "undefined"))
    assert not verdicts.met(judge(poisoned, "microbatch_equal"))


@pytest.mark.parametrize(
    ("parameters", "moments", "steps", "verdict"),
    [(0.0, 0.0, 0, "no_op"), (0.0, 0.1, 0, "state_only"), (0.0, 0.0, 1, "state_only"), (0.4, 0.1, 1, "moved")],
)
def test_an_empty_window_moves_something_or_nothing(
    parameters: float, moments: float, steps: int, verdict: str
) -> None:
    seen = {"kind": "state", "parameters": parameters, "moments": moments, "steps": steps}
    judged = judge({**seen, "parameters_before": 0.5, "loss": math.nan}, verdict, "F")
    assert (judged.verdict, judged.values["loss"]) == (verdict, "nan")
    assert verdicts.met(judged)
    assert not verdicts.met(judge({**seen, "parameters_before": 0.5, "loss": None}, "undefined", "F"))


def clipped(*reported: float | None, updated: float = 0.05, residual: float = 0.0) -> dict[str, Any]:
    norms = {"reported": list(reported), "true": 0.34, "max_norm": 0.05, "updated": updated}
    return {"kind": "clipping", **norms, "residual": residual}


def test_a_norm_is_true_on_every_rank_or_wrong() -> None:
    assert verdicts.met(judge(clipped(0.34, 0.34), "true_norm", "clip"))
    assert judge(clipped(0.34, 0.2), "true_norm", "clip").verdict == "wrong_norm"
    assert not verdicts.met(judge(clipped(0.34, 0.2), "true_norm", "clip"))
    assert verdicts.met(judge(clipped(None, None), "not_reported", "clip"))


def test_a_true_norm_that_is_not_applied_is_not_met() -> None:
    assert not verdicts.met(judge(clipped(0.34, 0.34, updated=0.07), "true_norm", "clip"))
    assert not verdicts.met(judge(clipped(0.34, 0.34, residual=0.1), "true_norm", "clip"))


def contrastive(**groups: tuple[float, float]) -> dict[str, Any]:
    described = {name: {"factor": factor, "residual": residual} for name, (factor, residual) in groups.items()}
    return {"kind": "contrastive", "groups": described}


def test_every_group_has_its_factor_or_another_direction() -> None:
    half = contrastive(query=(0.5, 0.0), temperature=(1.0, 0.0))
    assert judge(half, None, "pairs").verdict == "scaled"
    assert verdicts.met(judge(half, {"query": 0.5, "temperature": 1.0}, "pairs"))
    assert not verdicts.met(judge(half, {"query": 1.0, "temperature": 1.0}, "pairs"))
    assert not verdicts.met(judge(half, "full_batch", "pairs"))
    assert verdicts.met(judge(contrastive(query=(1.0, 0.0)), "full_batch", "pairs"))
    aside = contrastive(query=(0.97, 0.22))
    assert judge(aside, None, "pairs").verdict == "another_direction"
    assert verdicts.met(judge(aside, {"query": None}, "pairs"))
    assert not verdicts.met(judge(aside, {"query": 0.97}, "pairs"))
