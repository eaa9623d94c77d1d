"""Facts about windows without a token; the independent methods are `torch.optim.AdamW` and `torch.optim.SGD`."""

import math
import random
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st

from samestep.app.contract.limits import MAX_LISTED_CELLS
from tests.kit import Asked, Body, Program, cases, changed, quarters

asked = Asked("empty_step")
answer, view, refusal = asked.answer, asked.view, asked.refusal

MAIN, FURTHER = cases()["Z-01"], cases()["Z-02"]
LISTS = ("param", "exp_avg", "exp_avg_sq", "momentum_buffer")


# --- the worked cases


def test_the_main_case_is_met_at_its_tolerance() -> None:
    got, tolerance = answer(MAIN["inputs"]), MAIN["tolerance"]
    for way, expected in MAIN["expected"].items():
        assert got[way]["step"] == expected["step"]
        for name in ("param", "exp_avg", "exp_avg_sq"):
            assert got[way][name] == pytest.approx(expected[name], rel=tolerance["rtol"], abs=tolerance["atol"])


def test_sgd_with_decay_1_and_rate_1_erases_the_weight_at_a_zero_gradient() -> None:
    state = FURTHER["inputs"]["decay"]
    body = {name: state[name] for name in ("lr", "weight_decay")}
    got = answer({"optimizer": "sgd", "param": [state["param"]], "grad": [state["grad"]], **body})
    assert got["step_called"]["param"] == [FURTHER["expected"]["decay"]["param"]] == [0]
    assert got["step_called"]["from_decay"] == [-1.75]
    assert got["skip"]["param"] == [1.75]


def test_a_zero_gradient_is_not_none_under_momentum() -> None:
    state, expected = FURTHER["inputs"]["momentum"], FURTHER["expected"]["momentum"]
    rule = {"optimizer": "sgd", "lr": state["lr"], "momentum": state["momentum"]}
    first = answer({**rule, "param": [state["param"]], "grad": state["grads"][:1]})["step_called"]
    second = answer({**rule, "param": first["param"], "grad": [0], "momentum_buffer": first["momentum_buffer"]})
    assert second["schemes"]["zero_grad"]["param"] == pytest.approx([expected["zero_grad"]], rel=1e-12)
    assert second["schemes"]["none_grad"]["param"] == pytest.approx([expected["none_grad"]], rel=1e-12)
    assert second["schemes"]["none_grad"]["momentum_buffer"] == [1]


def test_the_panels_defaults_are_the_main_case_and_show_that_parameters_move() -> None:
    got, posted = view(), answer(MAIN["inputs"])
    assert {name: got[name] for name in posted} == posted
    assert (got["selected"], got["before"]) == ("zero_grad", [1, -2])
    assert got["current"] == got["schemes"]["zero_grad"] == got["step_called"]
    assert (got["current"]["change"], got["current"]["same_as_skip"]) == ("parameters", False)
    assert got["current"]["from_decay"] == pytest.approx([-1e-4, 2e-4], rel=1e-12)


# --- the ways side by side


def test_only_skip_and_none_leave_the_optimizer_alone_and_only_skip_the_scheduler() -> None:
    got = answer(MAIN["inputs"] | {"scheduler_steps": 10})["schemes"]
    assert {name: state["change"] for name, state in got.items()} == {
        "skip": "nothing",
        "step_called": "parameters",
        "zero_grad": "parameters",
        "none_grad": "scheduler",
        "clamped_denominator": "parameters",
        "nan_grad": "nan",
        "scheduler_only": "scheduler",
    }
    assert {name for name, state in got.items() if state["same_as_skip"]} == {"skip", "none_grad", "scheduler_only"}
    assert {name: state["scheduler_steps"] for name, state in got.items() if state["scheduler_steps"] != 11} == {
        "skip": 10
    }
    assert got["clamped_denominator"] == got["zero_grad"]


def test_a_nan_gradient_spoils_parameters_and_moments_for_good() -> None:
    got = answer(MAIN["inputs"])["schemes"]["nan_grad"]
    assert got["param"] == got["exp_avg"] == got["exp_avg_sq"] == ["nan", "nan"]
    assert (got["step"], got["max_change"]) == (11, "nan")
    after = answer({**MAIN["inputs"], **{name: ["1", "1"] for name in ("param", "exp_avg_sq")}, "grad": ["nan", 0]})
    assert after["step_called"]["param"][0] == "nan"
    assert isinstance(after["step_called"]["param"][1], float)
    assert (after["defined"], after["reason"]) == (False, "non_finite")


def test_without_decay_and_history_a_zero_gradient_still_counts_a_step() -> None:
    got = answer({"param": [1], "grad": [0], "lr": "0.1"})["schemes"]["zero_grad"]
    assert (got["param"], got["step"], got["change"], got["same_as_skip"]) == ([1], 1, "moments", False)


def test_sgd_without_momentum_and_decay_does_not_mind_a_zero_gradient() -> None:
    got = answer({"optimizer": "sgd", "param": [1], "grad": [0], "lr": "0.1"})["schemes"]
    assert got["zero_grad"]["same_as_skip"] is True
    assert got["zero_grad"]["momentum_buffer"] is got["zero_grad"]["exp_avg"] is got["zero_grad"]["step"] is None


# --- against torch

NUMBERS = st.floats(-10, 10).map(lambda value: round(value, 6))
SMALL = st.floats(0, 1).map(lambda value: round(value, 6))
BETAS = st.floats(0, 0.999).map(lambda value: round(value, 6))


def lists(draw: st.DrawFn, size: int, numbers: st.SearchStrategy[float]) -> list[float]:
    return draw(st.lists(numbers, min_size=size, max_size=size))


@st.composite
def adamw_states(draw: st.DrawFn) -> Body:
    size = draw(st.integers(1, 3))
    body: Body = {
        "param": lists(draw, size, NUMBERS),
        "grad": lists(draw, size, NUMBERS),
        "lr": draw(SMALL),
        "weight_decay": draw(SMALL),
        "beta1": draw(BETAS),
        "beta2": draw(BETAS),
        "eps": draw(st.floats(1e-8, 0.1)),
    }
    if draw(st.booleans()):
        body["exp_avg"] = lists(draw, size, NUMBERS)
        body["exp_avg_sq"] = lists(draw, size, st.floats(0, 10))
        body["step"] = draw(st.integers(0, 10_000))
    return body


@st.composite
def sgd_states(draw: st.DrawFn) -> Body:
    size = draw(st.integers(1, 3))
    body: Body = {
        "optimizer": "sgd",
        "param": lists(draw, size, NUMBERS),
        "grad": lists(draw, size, NUMBERS),
        "lr": draw(SMALL),
        "weight_decay": draw(SMALL),
        "momentum": draw(st.sampled_from([0, 0.5, 0.9])),
    }
    if draw(st.booleans()):
        body["momentum_buffer"] = lists(draw, size, NUMBERS)
    if body["momentum"] and draw(st.booleans()):
        body["nesterov"] = True
    else:
        body["dampening"] = draw(SMALL)
    return body


def by_torch(body: Body, gradient: list[float] | None) -> dict[str, Any]:
    """One `step()` of the real optimizer from this state, with this `.grad`."""
    parameter = torch.nn.Parameter(torch.tensor(body["param"], dtype=torch.float64))
    rule = {"lr": body["lr"], "weight_decay": body["weight_decay"], "foreach": False}
    optimizer: torch.optim.Optimizer
    if body.get("optimizer") == "sgd":
        names = ("momentum", "dampening", "nesterov")
        optimizer = torch.optim.SGD([parameter], **rule, **{name: body[name] for name in names if name in body})
        if "momentum_buffer" in body:
            optimizer.state[parameter]["momentum_buffer"] = torch.tensor(body["momentum_buffer"], dtype=torch.float64)
    else:
        betas = body["beta1"], body["beta2"]
        optimizer = torch.optim.AdamW([parameter], **rule, betas=betas, eps=body["eps"])
        if "exp_avg" in body:
            state = {name: torch.tensor(body[name], dtype=torch.float64) for name in ("exp_avg", "exp_avg_sq")}
            optimizer.state[parameter].update(state, step=torch.tensor(float(body["step"])))
    parameter.grad = None if gradient is None else torch.tensor(gradient, dtype=torch.float64)
    optimizer.step()
    kept = optimizer.state[parameter]
    found: dict[str, Any] = {"param": parameter.tolist(), "step": int(kept["step"]) if "step" in kept else None}
    return found | {name: kept[name].tolist() for name in LISTS[1:] if kept.get(name) is not None}


def assert_is(got: dict[str, Any], expected: dict[str, Any], size: float) -> None:
    for name in LISTS:
        if name in expected:
            found = [float(value) for value in got[name]]
            assert found == pytest.approx(expected[name], rel=1e-11, abs=1e-12 * size, nan_ok=True), name
    assert got["step"] == expected["step"] or expected["step"] is None


@settings(deadline=None, max_examples=60)
@given(st.one_of(adamw_states(), sgd_states()))
def test_every_way_is_what_the_real_optimizer_does_with_that_gradient(body: Body) -> None:
    schemes = answer(body)["schemes"]
    size = 1 + sum(abs(value) for name in (*LISTS, "grad") for value in body.get(name, []))
    count = len(body["param"])
    gradients: dict[str, list[float] | None] = {
        "step_called": body["grad"],
        "zero_grad": [0.0] * count,
        "none_grad": None,
        "clamped_denominator": [0.0 / max(0, 1)] * count,
        "nan_grad": [math.nan] * count,
    }
    for name, gradient in gradients.items():
        assert_is(schemes[name], by_torch(body, gradient), size)


@settings(deadline=None)
@given(st.one_of(adamw_states(), sgd_states()))
def test_decay_history_and_gradient_add_up_to_the_change(body: Body) -> None:
    state = answer(body)["step_called"]
    size = 1 + sum(abs(value) for value in body["param"])
    for i, before in enumerate(body["param"]):
        parts = math.fsum(state[name][i] for name in ("from_decay", "from_history", "from_gradient"))
        assert parts == pytest.approx(state["param"][i] - before, rel=1e-9, abs=1e-12 * size)
    zero = answer(body)["schemes"]["zero_grad"]
    assert all(value == 0 for value in zero["from_gradient"])


def test_the_scheduler_of_torch_counts_whether_or_not_the_optimizer_stepped() -> None:
    parameter = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer)
    with pytest.warns(UserWarning, match=r"lr_scheduler.step\(\)"):
        scheduler.step()
    assert scheduler.last_epoch == 1
    state = answer({"optimizer": "sgd", "param": [1], "grad": [0], "lr": 1})["schemes"]["scheduler_only"]
    assert (state["scheduler_steps"], state["called"]) == (1, False)


# --- refusals and limits


REFUSED_BODIES = [
    *changed(
        MAIN["inputs"],
        [
            ({"grad": [0]}, "grad", "param 2"),
            ({"exp_avg": [0]}, "exp_avg", "param 2"),
            ({"exp_avg": None}, "exp_avg", "both"),
            ({"exp_avg": None, "exp_avg_sq": None}, "step", "above 0"),
            ({"exp_avg_sq": ["0.04", "-0.01"]}, "exp_avg_sq.1", "0 or more"),
            ({"exp_avg": ["inf", 0]}, "exp_avg.0", "finite"),
            ({"param": []}, "param"),
            ({"param": ["1", "x"]}, "param.1", "not a number"),
            ({"grad": [0, "none"]}, "grad.1", "not a number"),
            ({"lr": -1}, "lr", "0 or more"),
            ({"beta1": 1}, "beta1", "below 1"),
            ({"beta2": -1}, "beta2", "0 or more"),
            ({"eps": "nan"}, "eps", "finite"),
            ({"step": "1.5"}, "step", "whole"),
            ({"step": -1}, "step"),
            ({"momentum": "0.5"}, "momentum", "belongs to sgd"),
            ({"optimizer": "sgd"}, "exp_avg", "belongs to adamw"),
            ({"optimizer": "adam"}, "optimizer"),
            ({"amsgrad": True}, "amsgrad"),
        ],
    ),
    ({"param": [1e308], "grad": [1e308], "lr": 1e308, "optimizer": "sgd"}, "grad", "number_range"),
    ({"param": [1], "grad": [0], "lr": 1, "eps": 0}, "param", "number_range"),
    ({"param": [1], "grad": [1e200], "lr": 1}, "grad", "number_range"),
]


def test_nesterov_needs_what_torch_demands_of_it() -> None:
    body = {"optimizer": "sgd", "param": [1], "grad": [1], "lr": 1, "nesterov": True}
    assert refusal(body).path == ("nesterov",)
    assert refusal(body | {"momentum": "0.9", "dampening": "0.1"}).path == ("nesterov",)
    with pytest.raises(ValueError, match="Nesterov"):
        torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0, nesterov=True)


REFUSED_FIELDS = {
    "grad": [{"param": "1"}],
    "exp_avg": [""],
    "step": [{"exp_avg": "", "exp_avg_sq": ""}],
    "lr": [""],
    "param": ["1,inf"],
    "scheme": ["zero"],
}


def test_the_panel_reads_only_the_fields_of_its_optimizer_and_lists_in_either_direction() -> None:
    got = view(optimizer="sgd", exp_avg="1,2,3", param="1\n-2", grad="0\n0", momentum_buffer="")
    assert got["optimizer"] == "sgd"
    assert got["current"]["momentum_buffer"] == [0.1, -0.2]  # the first one is d = weight_decay · w


def test_long_lists_are_left_out_and_the_verdict_stays() -> None:
    count = MAX_LISTED_CELLS + 1
    got = answer({"param": [1] * count, "grad": [1] * count, "lr": "0.1"})["step_called"]
    assert got["param"] is got["exp_avg"] is got["from_decay"] is None
    assert (got["change"], got["max_change"]) == ("parameters", pytest.approx(0.1, rel=1e-6))


# --- the program that its page offers


def any_body(source: random.Random) -> Body:
    size = source.randint(1, 3)
    grad = source.choice([[0] * size, quarters(source, size), ["nan"] * size])
    shared = {"param": quarters(source, size), "grad": grad, "lr": "0.01", "weight_decay": source.choice([0, "0.1"])}
    if source.random() < 0.5:
        history = {"exp_avg": quarters(source, size), "exp_avg_sq": [0.5] * size, "step": source.randint(0, 9)}
        return {**shared, **source.choice([history, {}]), "beta1": source.choice([0, "0.9"]), "beta2": "0.99"}
    momentum = source.choice(
        [{"momentum": 0}, {"momentum": "0.9", "nesterov": True}, {"momentum": "0.9", "dampening": "0.1"}]
    )
    buffer = source.choice([{}, {"momentum_buffer": quarters(source, size)}])
    return {**shared, "optimizer": "sgd", **momentum, **buffer}


PROGRAM = Program(
    prints=["schemes.zero_grad.param", "schemes.nan_grad.exp_avg", "schemes.skip.step"],
    planted=("[0.5, -0.25]", "[0.5, -0.125]"),
    bodies=any_body,
)
