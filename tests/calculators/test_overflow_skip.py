"""Facts about skipping together; the independent methods are `torch.amp.GradScaler` per rank and exact fractions."""

import math
import random
from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st

from samestep.app.calculators.overflow_skip import Inputs, compute
from samestep.app.contract.limits import MAX_LISTED_CELLS
from tests.kit import Asked, Body, Program, agrees, cases, changed, quarters

asked = Asked("overflow_skip")
answer, view = asked.answer, asked.view


ONE_BAD_SHARD: Body = cases()["O-01"]["inputs"]


@pytest.mark.parametrize("case", cases("overflow").values(), ids=lambda case: case["id"])
def test_every_worked_case_is_met_at_its_tolerance(case: dict[str, Any]) -> None:
    agrees(answer(case["inputs"]), case["expected"], **case["tolerance"])


def test_there_are_five_worked_cases_of_both_decisions() -> None:
    assert len(cases("overflow").values()) == 5
    assert {case["expected"]["coordinated"]["decision"] for case in cases("overflow").values()} == {"skip", "step"}


# --- the protocols


@pytest.mark.parametrize("value", ["inf", "-inf", "nan"])
@pytest.mark.parametrize("rank", [0, 1, 2])
def test_one_bad_value_on_any_rank_stops_all_only_if_they_agree(value: str, rank: int) -> None:
    grads: list[list[Any]] = [[8, 8], [8, 8], [8, 8]]
    grads[rank][1] = value
    got = answer({"scaled_grads": grads, "scale": 8, "params": [[1, 1]] * 3, "lr": "0.5", "growth_tracker": 5})
    assert (got["decision"], got["reason"]) == ("skip", "non_finite")
    assert got["coordinated"]["params"] == [[1, 1]] * 3
    assert got["coordinated"]["next_scale"] == [4, 4, 4]
    assert (got["coordinated"]["next_growth_tracker"], got["coordinated"]["successful_updates"]) == (0, 0)
    others = [r for r in range(3) if r != rank]
    alone = got["uncoordinated"]
    assert [alone["decision_per_rank"][r] for r in others] == ["step", "step"]
    assert [alone["params"][r] for r in others] == [[0.5, 0.5]] * 2
    assert alone["params"][rank] == [1, 1]
    assert [alone["next_growth_tracker"][r] for r in others] == [6, 6]
    assert alone["next_growth_tracker"][rank] == 0
    assert alone["successful_updates"] == [int(r != rank) for r in range(3)]
    assert got["scales_agree_after_coordinated"] is True
    assert got["scales_agree_after_uncoordinated"] is False


def test_a_static_scale_changes_neither_scale_nor_tracker() -> None:
    body = {"scaled_grads": [[1], [1]], "scale": 4, "params": [[1], [1]], "lr": 1, "static_scale": True}
    for grads in ([["nan"], [1]], [[1], [1]]):
        got = answer(body | {"scaled_grads": grads, "growth_interval": 8, "growth_tracker": 7})
        assert got["coordinated"]["next_scale"] == got["uncoordinated"]["next_scale"] == [4, 4]
        assert got["coordinated"]["next_growth_tracker"] == 7
    assert got["decision"] == "step"


def test_a_reduction_spreads_the_flag_and_the_gradient_to_every_rank() -> None:
    body = {"scaled_grads": [[2, 4], [6, 8]], "scale": 2, "params": [[1, 1], [1, 1]], "lr": 1}
    for reduce, params in (("mean", [-1, -2]), ("sum", [-3, -5])):
        got = answer(body | {"reduce": reduce})
        assert got["coordinated"]["params"] == [params, params]
        assert got["replicas_equal_after_coordinated"] is True
    opposite = answer(body | {"reduce": "sum", "scaled_grads": [["inf", 1], ["-inf", 1]]})
    assert opposite["nonfinite_after_reduction"] == [True, True]  # inf - inf = nan


def test_replicas_under_different_scales_part_although_they_decide_alike() -> None:
    body = {"scaled_grads": [[8], [8]], "scale": [8, 4], "params": [[1], [1]], "lr": "0.5", "reduce": "mean"}
    got = answer(body)
    assert got["ranks_take_same_decision_if_uncoordinated"] is True
    assert got["scales_agree"] is False
    assert got["replicas_equal_after_coordinated"] is got["replicas_equal_after_uncoordinated"] is False
    assert got["coordinated"]["params"] == [[0.5], [0]]
    agreed = answer(body | {"scale": 8})
    assert agreed["replicas_equal_after_coordinated"] is True


def test_equality_of_replicas_is_not_claimed_for_shards_or_an_unequal_start() -> None:
    body = {"scaled_grads": [[8], [8]], "scale": 8, "params": [[1], [1]], "lr": 1}
    assert answer(body)["replicas_equal_after_coordinated"] is None
    assert answer(body | {"reduce": "mean", "params": [[1], [2]]})["replicas_equal_after_coordinated"] is None


def test_ranks_may_hold_nothing_and_lists_end_at_the_limit() -> None:
    got = answer({"scaled_grads": [[], [8]], "scale": 8, "params": [[], [1]], "lr": 1})
    assert got["coordinated"]["params"] == [[], [0]]
    empty = answer({"scaled_grads": [[], []], "scale": 8, "params": [[], []], "lr": 1, "reduce": "mean"})
    assert empty["coordinated"]["params"] == [[], []]
    count = MAX_LISTED_CELLS + 1
    long = answer({"scaled_grads": [[1] * count], "scale": 1, "params": [[1] * count], "lr": 1})
    assert long["coordinated"]["params"] is long["uncoordinated"]["params"] is None
    assert long["decision"] == "step"


# --- refusals


REFUSED_BODIES = changed(
    ONE_BAD_SHARD,
    [
        ({"params": [[1]]}, "params", "2"),
        ({"params": [[1], [1, 2]]}, "params.1", "rank 1"),
        ({"scale": [8, 8, 8]}, "scale", "3 values"),
        ({"scale": []}, "scale", "at least 1"),
        ({"scale": [8, 0]}, "scale", "value 2"),
        ({"scale": 0}, "scale", "greater than 0"),
        ({"scale": "inf"}, "scale", "finite"),
        ({"reduce": "mean", "scaled_grads": [[1], [1, 2]], "params": [[1], [1, 2]]}, "scaled_grads.1", "rank 1"),
        ({"reduce": "max"}, "reduce"),
        ({"scaled_grads": [["inf"], ["x"]]}, "scaled_grads.1.0", "not a number"),
        ({"scaled_grads": []}, "scaled_grads"),
        ({"params": [["inf"], [1]]}, "params.0.0", "finite"),
        ({"growth_interval": 0}, "growth_interval"),
        ({"growth_interval": "2.5"}, "growth_interval", "whole"),
        ({"growth_tracker": -1}, "growth_tracker"),
        ({"growth_tracker": True}, "growth_tracker", "number"),
        ({"static_scale": 1}, "static_scale"),
        ({"lr": "nan"}, "lr", "finite"),
        ({"momentum": 0.9}, "momentum"),
        # results beyond float64, which are never infinity
        ({"scaled_grads": [[1e308], [1]], "scale": "1e-10"}, "scale"),  # gradient too large
        ({"scale": 5e-324, "scaled_grads": [["inf"], [0]]}, "scale"),  # backs off to 0
        ({"scaled_grads": [[1], [1]], "scale": 1e308, "growth_interval": 1}, "scale"),  # doubles beyond
        ({"scaled_grads": [[1e308], [1e308]], "reduce": "sum"}, "scaled_grads"),
        ({"scaled_grads": [[1e300], [1]], "scale": 1, "lr": 1e300}, "lr"),
    ],
)


# --- the panel


def test_the_panels_defaults_are_the_sources_own_example() -> None:
    got, posted = view(), answer(ONE_BAD_SHARD)
    assert {name: got[name] for name in posted} == posted
    assert got["decision"] == "skip"
    assert [(row["rank"], row["scaled"], row["unscaled"], row["nonfinite"]) for row in got["rows"]] == [
        (0, "inf", "inf", True),
        (1, 65536, 1, False),
    ]
    assert [row["param_coordinated"] for row in got["rows"]] == [1, 1]
    assert [row["param_alone"] for row in got["rows"]] == [1, 0.9]
    assert [row["scale_next_coordinated"] for row in got["rows"]] == [32768, 32768]
    assert [row["scale_next_alone"] for row in got["rows"]] == [32768, 65536]


@pytest.mark.parametrize("scale", ["8;4", "8,4", "8\n4"])
def test_one_scale_for_each_rank_is_written_either_way(scale: str) -> None:
    got = view(scaled_grads="8;8", scale=scale)
    assert got["scale"] == [8, 4]
    assert got["scales_agree"] is False
    assert [row["unscaled"] for row in got["rows"]] == [1, 2]


REFUSED_FIELDS = {
    "params": ["1", "1;inf", "", ";".join("1" * 4097)],
    "params.1": ["1;1,2"],
    "scale": ["8;4;2", "8;-4", ""],
    "scaled_grads": ["1;x"],
    "lr": [""],
}


def test_the_tables_have_a_row_a_rank() -> None:
    for result in (asked.panel(), compute(Inputs(**ONE_BAD_SHARD))):
        for table in result.tables():
            assert len(table.rows) == 2


# --- properties

GRADS = st.one_of(st.floats(-1e4, 1e4), st.sampled_from(["inf", "-inf", "nan"]))
SCALES = st.integers(-8, 16).map(lambda power: 2.0**power)  # GradScaler inverts the scale in float32


@st.composite
def shards(draw: st.DrawFn) -> Body:
    """One to four ranks with up to four values each, a scale each, and a scaler near its growth."""
    grads = draw(st.lists(st.lists(GRADS, min_size=1, max_size=4), min_size=1, max_size=4))
    return {
        "scaled_grads": grads,
        "params": [draw(st.lists(st.floats(-10, 10), min_size=len(row), max_size=len(row))) for row in grads],
        "scale": draw(st.lists(SCALES, min_size=len(grads), max_size=len(grads))),
        "lr": draw(st.floats(0, 2)),
        "growth_interval": draw(st.integers(1, 4)),
        "growth_tracker": draw(st.integers(0, 5)),
    }


def torch_step(body: Body, rank: int, flag: bool | None) -> tuple[list[float], float, int, bool]:
    """One rank's own GradScaler: parameters, scale, tracker, stepped. `flag` is what the ranks agreed on, if at all."""
    scaler = torch.amp.GradScaler("cpu", init_scale=body["scale"][rank], growth_interval=body["growth_interval"])
    scaler.load_state_dict({**scaler.state_dict(), "_growth_tracker": body["growth_tracker"]})
    parameter = torch.nn.Parameter(torch.tensor(body["params"][rank], dtype=torch.float64))
    optimizer = torch.optim.SGD([parameter], lr=body["lr"])
    scaler.scale(torch.zeros(1))  # makes its state
    parameter.grad = torch.tensor([float(value) for value in body["scaled_grads"][rank]], dtype=torch.float64)
    scaler.unscale_(optimizer)
    found = scaler._per_optimizer_states[id(optimizer)]["found_inf_per_device"]
    if flag:
        for device_flag in found.values():
            device_flag.fill_(1)
    stepped = not any(float(device_flag) for device_flag in found.values())
    scaler.step(optimizer)
    scaler.update()
    return parameter.tolist(), scaler.get_scale(), scaler.state_dict()["_growth_tracker"], stepped


@settings(deadline=None, max_examples=60)
@given(shards())
def test_each_rank_alone_is_a_gradscaler_and_together_one_with_a_common_flag(body: Body) -> None:
    got = answer(body)
    together = any(not math.isfinite(float(value)) for row in body["scaled_grads"] for value in row)
    assert got["decision"] == ("skip" if together else "step")
    for r in range(len(body["scaled_grads"])):
        params, scale, tracker, stepped = torch_step(body, r, None)
        alone = got["uncoordinated"]
        assert alone["params"][r] == pytest.approx(params, rel=1e-12, abs=1e-12)
        assert (alone["next_scale"][r], alone["next_growth_tracker"][r]) == (scale, tracker)
        assert (alone["decision_per_rank"][r] == "step") is stepped
        params, scale, tracker, stepped = torch_step(body, r, together)
        assert got["coordinated"]["params"][r] == pytest.approx(params, rel=1e-12, abs=1e-12)
        assert (got["coordinated"]["next_scale"][r], got["coordinated"]["next_growth_tracker"]) == (scale, tracker)
        assert got["coordinated"]["successful_updates"] == int(stepped)


@settings(deadline=None)
@given(shards(), st.randoms(use_true_random=False))
def test_the_order_of_the_ranks_does_not_matter(body: Body, random: Any) -> None:
    order = random.sample(range(len(body["scale"])), len(body["scale"]))
    moved = body | {name: [body[name][r] for r in order] for name in ("scaled_grads", "params", "scale")}
    before, after = answer(body), answer(moved)
    assert after["decision"] == before["decision"]
    for protocol in ("coordinated", "uncoordinated"):
        for field in ("params", "next_scale"):
            assert after[protocol][field] == [before[protocol][field][r] for r in order]


@settings(deadline=None)
@given(shards())
def test_the_protocols_differ_exactly_when_some_ranks_are_flagged_and_others_not(body: Body) -> None:
    got = answer(body)
    flags = got["nonfinite_after_reduction"]
    mixed = any(flags) and not all(flags)
    assert got["ranks_take_same_decision_if_uncoordinated"] is not mixed
    assert (got["coordinated"]["next_scale"] != got["uncoordinated"]["next_scale"]) is mixed


@settings(deadline=None)
@given(
    st.integers(1, 4).flatmap(
        lambda d: st.lists(st.lists(st.integers(-1000, 1000), min_size=d, max_size=d), min_size=1, max_size=5)
    ),
    st.sampled_from(["mean", "sum"]),
    SCALES,
)
def test_reduced_gradients_are_the_exact_means_and_sums(rows: list[list[int]], reduce: str, scale: float) -> None:
    body = {"scaled_grads": rows, "params": [[0] * len(rows[0])] * len(rows), "scale": scale, "lr": 1, "reduce": reduce}
    divisor = len(rows) if reduce == "mean" else 1
    expected = [-Fraction(sum(column)) / divisor / Fraction(scale) for column in zip(*rows, strict=True)]
    got = answer(body)
    assert got["replicas_equal_after_coordinated"] is True
    for row in got["coordinated"]["params"]:
        assert row == pytest.approx([float(value) for value in expected], rel=1e-14)


# --- the program that its page offers


def any_body(source: random.Random) -> Body:
    ranks, reduce = source.randint(1, 3), source.choice([None, "mean", "sum"])
    sizes = [2] * ranks if reduce else [source.randint(1, 3) for _ in range(ranks)]
    grads = [[source.choice(["inf", "nan", 8, -3, "0.1"]) for _ in range(size)] for size in sizes]
    return {
        "scaled_grads": grads,
        "params": [quarters(source, size) for size in sizes],
        "scale": source.choice([8, "0.1", [2**r for r in range(ranks)]]),
        "lr": source.choice(["0.1", -1]),
        "reduce": reduce,
        "growth_interval": source.choice([1, 3]),
        "growth_tracker": source.randint(0, 4),
        "static_scale": source.random() < 0.3,
    }


PROGRAM = Program(
    prints=["coordinated.decision", "coordinated.params", "uncoordinated.params", "coordinated.next_scale"],
    planted=("[65536]", "[65537]"),
    bodies=any_body,
)
