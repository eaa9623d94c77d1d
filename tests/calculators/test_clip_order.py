"""Facts about the order of clipping; the independent methods are `torch.nn.utils.clip_grad_norm_` and plain Python."""

import math
import random

import pytest
import torch
from hypothesis import assume, given, settings, strategies as st

from samestep.app.contract.limits import MAX_LISTED_CELLS
from tests.kit import Asked, Body, Program, cases, quarters

asked = Asked("clip_order")
answer, view = asked.answer, asked.view

WAYS = ("clip_of_sum", "clip_of_mean", "sum_of_clipped", "mean_of_clipped", "running_clip")
TORCH_EPS = "1e-6"
CHAIN = cases()["X-01"]


@pytest.mark.parametrize("case", cases("clip_order").values(), ids=lambda case: case["id"])
def test_the_worked_case_is_met_at_its_tolerance(case: Body) -> None:
    got = answer(case["inputs"])
    for name, expected in case["expected"].items():
        assert got[name] == pytest.approx(expected, rel=case["tolerance"]["rtol"], abs=case["tolerance"]["atol"]), name


def test_the_panels_defaults_show_the_worked_case_with_the_running_clip_turned_by_more_than_70_degrees() -> None:
    got = view()
    assert got["selected"] == "running_clip"
    assert got["current"] == got["schemes"]["running_clip"]
    assert got["current"]["matches_reference"] is False
    assert got["current"]["norm_ratio"] == pytest.approx(1, rel=1e-12)  # the length alone shows nothing
    assert got["current"]["cosine_with_reference"] == pytest.approx(0.1**0.5, rel=1e-12)
    assert [step["norm"] for step in got["microsteps"]] == [5, 3]
    assert [step["coefficient"] for step in got["microsteps"]] == [0.2, pytest.approx(1 / 3)]


@pytest.mark.parametrize("name", ["reference", "replica_mean_then_ddp_mean", "P_over_N_then_ddp_mean"])
def test_the_worked_chain_clips_only_after_the_wrong_mean(name: str) -> None:
    """One microstep, so that every order is the same: gradient, norm, coefficient and the SGD step of the chain."""
    inputs, expected, tolerance = (CHAIN[key] for key in ("inputs", "expected", "tolerance"))
    got = answer({"microstep_grads": [expected[name]["grad"]], "max_norm": inputs["max_norm"]})
    assert got["sum_norm"] == pytest.approx(expected[name]["norm"], rel=tolerance["rtol"])
    assert got["coefficient_of_sum"] == pytest.approx(expected[name]["coefficient"], rel=tolerance["rtol"])
    assert (got["coefficient_of_sum"] < 1) is expected[name]["clipping_active"]
    after = [w - float(inputs["lr"]) * g for w, g in zip(inputs["theta"], got["clip_of_sum"], strict=True)]
    assert after == pytest.approx(expected[name]["theta_after"], rel=tolerance["rtol"], abs=tolerance["atol"])


# --- against torch


def clipped_by_torch(gradient: torch.Tensor, max_norm: float) -> torch.Tensor:
    parameter = torch.nn.Parameter(torch.zeros_like(gradient))
    parameter.grad = gradient.clone()
    torch.nn.utils.clip_grad_norm_([parameter], max_norm)
    assert parameter.grad is not None
    return parameter.grad


def by_torch(rows: list[list[float]], max_norm: float, scale: float) -> dict[str, list[float]]:
    """Every order as a training loop would run it."""
    scaled = torch.tensor(rows, dtype=torch.float64)
    gradients = scaled / scale
    alone = torch.stack([clipped_by_torch(gradient, max_norm) for gradient in gradients])
    parameter = torch.nn.Parameter(torch.zeros(len(rows[0]), dtype=torch.float64))
    for gradient in gradients:
        (parameter * gradient).sum().backward()
        torch.nn.utils.clip_grad_norm_([parameter], max_norm)
    assert parameter.grad is not None
    return {
        "clip_of_sum": clipped_by_torch(gradients.sum(0), max_norm).tolist(),
        "clip_of_mean": clipped_by_torch(gradients.mean(0), max_norm).tolist(),
        "sum_of_clipped": alone.sum(0).tolist(),
        "mean_of_clipped": alone.mean(0).tolist(),
        "running_clip": parameter.grad.tolist(),
        "clip_before_unscale": (clipped_by_torch(scaled.sum(0), max_norm) / scale).tolist(),
        "clip_after_unscale": clipped_by_torch(scaled.sum(0) / scale, max_norm).tolist(),
    }


VALUES = st.floats(-100, 100).map(lambda value: round(value, 6))
ROWS = st.integers(1, 4).flatmap(lambda d: st.lists(st.lists(VALUES, min_size=d, max_size=d), min_size=1, max_size=5))
POSITIVE = st.floats(0.01, 50)
SCALES = st.integers(-4, 12).map(lambda power: 2.0**power)


@settings(deadline=None)
@given(ROWS, POSITIVE, SCALES)
def test_every_order_is_what_torch_does_in_that_order(rows: list[list[float]], max_norm: float, scale: float) -> None:
    got = answer({"microstep_grads": rows, "max_norm": max_norm, "scale": scale, "eps": TORCH_EPS})
    size = 1 + max(abs(value) for row in rows for value in row) / scale
    for name, expected in by_torch(rows, max_norm, scale).items():
        assert got[name] == pytest.approx(expected, rel=1e-10, abs=1e-12 * size), name


# --- what holds in general


@settings(deadline=None)
@given(ROWS, POSITIVE)
def test_no_right_order_exceeds_the_threshold_and_the_wrong_sum_can_by_k_times(
    rows: list[list[float]], max_norm: float
) -> None:
    got = answer({"microstep_grads": rows, "max_norm": max_norm})
    for name in ("clip_of_sum", "clip_of_mean", "running_clip", "mean_of_clipped"):
        assert math.hypot(*got[name]) <= max_norm * (1 + 1e-12)
    assert math.hypot(*got["sum_of_clipped"]) <= len(rows) * max_norm * (1 + 1e-12)


@settings(deadline=None)
@given(ROWS)
def test_all_orders_agree_where_nothing_is_clipped(rows: list[list[float]]) -> None:
    far = 1 + sum(math.hypot(*row) for row in rows)
    got = answer({"microstep_grads": rows, "max_norm": far})
    assert all(scheme["matches_reference"] for scheme in got["schemes"].values())
    assert got["clip_of_sum"] == pytest.approx([math.fsum(column) for column in zip(*rows, strict=True)], abs=1e-9)
    assert all(step["coefficient"] == 1 for step in got["microsteps"])


@settings(deadline=None)
@given(ROWS, POSITIVE)
def test_with_one_microstep_every_order_is_the_same(rows: list[list[float]], max_norm: float) -> None:
    got = answer({"microstep_grads": rows[:1], "max_norm": max_norm})
    for name in WAYS:
        assert got[name] == got["clip_of_sum"]


@settings(deadline=None)
@given(ROWS, POSITIVE)
def test_sum_and_mean_differ_only_where_the_mean_is_not_clipped(rows: list[list[float]], max_norm: float) -> None:
    got = answer({"microstep_grads": rows, "max_norm": max_norm})
    assume(got["mean_norm"] > max_norm * (1 + 1e-9))
    assert got["clip_of_sum"] == pytest.approx(got["clip_of_mean"], rel=1e-9, abs=1e-9)


def test_clipping_before_the_division_by_the_scale_makes_the_threshold_smaller_by_the_scale() -> None:
    got = answer({"microstep_grads": [[3, 4], [-3, 0]], "max_norm": 1, "scale": 8})
    assert got["sum"] == [0, 0.5]
    assert got["clip_after_unscale"] == got["clip_of_sum"] == [0, 0.5]  # within the threshold: nothing is clipped
    assert got["clip_before_unscale"] == [0, 0.125]
    assert got["schemes"]["clip_before_unscale"]["norm_ratio"] == 0.25
    assert got["schemes"]["clip_before_unscale"]["cosine_with_reference"] == 1
    assert got["schemes"]["clip_before_unscale"]["matches_reference"] is False


def test_a_wrong_order_can_turn_the_gradient_round() -> None:
    got = answer({"microstep_grads": [[10], [-1], [-1]], "max_norm": 1})
    assert got["clip_of_sum"] == [1]
    assert got["sum_of_clipped"] == [-1]
    assert got["schemes"]["sum_of_clipped"]["cosine_with_reference"] == -1


def test_a_zero_gradient_keeps_its_coefficient_and_has_no_direction() -> None:
    got = answer({"microstep_grads": [[3, 4], [-3, -4]], "max_norm": 1})
    assert got["clip_of_sum"] == got["clip_of_mean"] == [0, 0]
    assert got["coefficient_of_sum"] == 1
    scheme = got["schemes"]["running_clip"]  # clip([0.6, 0.8] + [-3, -4]) = [-0.6, -0.8]
    assert got["running_clip"] == pytest.approx([-0.6, -0.8], rel=1e-12)
    assert (scheme["norm_ratio"], scheme["cosine_with_reference"], scheme["reason"]) == (None, None, "zero_reference")


def test_threshold_zero_gives_zeros_in_every_order() -> None:
    got = answer({"microstep_grads": [[3, 4], [-3, 0]], "max_norm": 0})
    assert all(got[name] == [0, 0] for name in WAYS)


def test_gradients_of_any_size_keep_their_digits() -> None:
    for size in (1e-300, 1e300):
        got = answer({"microstep_grads": [[3 * size, 4 * size], [-3 * size, 0]], "max_norm": size})
        assert got["sum_of_clipped"] == pytest.approx([-0.4 * size, 0.8 * size], rel=1e-12)


# --- refusals and limits


REFUSED_BODIES = [
    ({"microstep_grads": [[1, 2], [1]], "max_norm": 1}, "microstep_grads.1", "microstep 1"),
    ({"microstep_grads": [[]], "max_norm": 1}, "microstep_grads.0", "at least one"),
    ({"microstep_grads": [], "max_norm": 1}, "microstep_grads"),
    ({"microstep_grads": [["nan"]], "max_norm": 1}, "microstep_grads.0.0", "finite"),
    ({"microstep_grads": [[1], ["x"]], "max_norm": 1}, "microstep_grads.1.0", "not a number"),
    ({"microstep_grads": [[True]], "max_norm": 1}, "microstep_grads.0.0", "number"),
    ({"microstep_grads": [[1]], "max_norm": -1}, "max_norm", "0 or more"),
    ({"microstep_grads": [[1]], "max_norm": "inf"}, "max_norm", "finite"),
    ({"microstep_grads": [[1]], "max_norm": 1, "scale": 0}, "scale", "greater than 0"),
    ({"microstep_grads": [[1]], "max_norm": 1, "eps": "-1e-6"}, "eps", "0 or more"),
    ({"microstep_grads": [[1]], "max_norm": 1, "norm_type": 1}, "norm_type"),
    ({"microstep_grads": [[1e308], [1e308]], "max_norm": 1}, "microstep_grads", "float64"),
    ({"microstep_grads": [[1.7e308, 1.7e308]], "max_norm": 1}, "microstep_grads", "float64"),
    ({"microstep_grads": [[1e300]], "max_norm": 1, "scale": "1e-10"}, "scale", "float64"),
]


REFUSED_FIELDS = {
    "microstep_grads.1": ["3,4;1"],
    "microstep_grads": ["", ";".join("1" * 4097)],
    "max_norm": [""],
    "scheme": ["clip"],
}


def test_long_gradients_keep_their_norms_but_leave_out_their_lists() -> None:
    got = answer({"microstep_grads": [[1] * (MAX_LISTED_CELLS + 1)] * 2, "max_norm": 1})
    assert got["clip_of_sum"] is got["schemes"]["running_clip"]["gradient"] is got["microsteps"] is None
    assert got["sum_norm"] == pytest.approx(2 * math.sqrt(MAX_LISTED_CELLS + 1), rel=1e-12)


# --- the program that its page offers


def any_body(source: random.Random) -> Body:
    rows = quarters(source, source.randint(1, 5), source.randint(1, 4))
    return {
        "microstep_grads": rows,
        "max_norm": source.choice([0, 1, 3]),
        "scale": source.choice([1, 8, "1/3"]),
        "eps": source.choice([0, "1e-6"]),
    }


PROGRAM = Program(
    prints=["clip_of_sum", "running_clip", "clip_before_unscale", "sum_norm", "microsteps.1.running"],
    planted=("[3, 4]", "[3, 5]"),
    bodies=any_body,
)
