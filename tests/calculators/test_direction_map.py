"""The map of directions against the ledger state by state, and against plain loops over floats."""

import random
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from samestep.app.calculators import replica_ledger
from samestep.app.calculators.direction_map import Inputs, Query, compute
from samestep.app.calculators.direction_map.grid import direction_map
from tests.kit import Asked, Body, Program

asked = Asked("direction_map")
view = asked.view

Answer = dict[str, Any]


def test_the_default_state_is_the_sources_own_example_and_it_is_turned() -> None:
    got = view()
    point = got["point"]
    assert (point["kind"], point["reference"], point["replica_mean"]) == ("flipped", 0.4, -0.5)
    assert point["ratio_exact"] == "-5/4"
    assert got["flipped_b"] == [5, 32]
    assert (got["turning_slope"], got["turning_slope_exact"]) == (2, "2")
    assert got["cells"] == {"agree": 768, "flipped": 240, "zero_reference": 16, "vanishes": 0, "undefined": 65}
    assert got["same"] == 32  # the diagonal


def test_every_state_is_that_of_the_ledger() -> None:
    got = view(size=9)
    for a in range(10):
        for b in range(10):
            query = replica_ledger.Query.model_validate({"a": a, "b": b})
            scheme = replica_ledger.panel(query).schemes["replica_mean_then_ddp_mean"]
            kind, ratio = got["kinds"][a][b], got["ratios"][a][b]
            assert (ratio is None) is (scheme.ratio_to_reference is None)
            if ratio is not None:
                assert ratio == pytest.approx(scheme.ratio_to_reference, rel=1e-14)
            assert scheme.sign_flipped is ({"agree": False, "flipped": True}.get(kind))
            assert scheme.defined is (kind != "undefined")


def test_an_empty_replica_is_undefined_and_a_vanishing_mean_has_a_kind_of_its_own() -> None:
    assert view(a=0, b=0)["point"]["reason"] == "zero_count"
    assert view(a=0, b=3)["point"]["reason"] == "empty_cell"
    assert view(a=0, b=3)["point"]["reference"] == 1
    opposite = view(target_a=1, target_b=-1, a=2, b=3)
    assert (opposite["point"]["kind"], opposite["point"]["ratio"]) == ("vanishes", 0)
    level = view(a=1, b=2)["point"]
    assert (level["kind"], level["reason"], level["ratio"]) == ("zero_reference", "zero_reference", None)


def test_gradients_of_one_sign_never_turn() -> None:
    got = view(target_a=-3, target_b=-1)
    assert got["cells"]["flipped"] == 0
    assert got["flipped_b"] is None
    assert got["turning_slope"] is None


REFUSED_FIELDS = {
    "a": [33, -1, "2.5", True],
    "b": [{"b": 20, "size": 10}],
    "size": [65, 0],
    "theta": [""],
    "target_a": ["nan", {"target_a": "1.7e308", "target_b": "-1.7e308", "theta": "1e308"}],
}


def test_post_and_get_have_the_same_fields_and_answers_and_a_row_a_cell() -> None:
    assert set(Inputs.model_fields) == set(Query.model_fields)
    assert compute(Inputs()).model_dump_json() == asked.panel().model_dump_json()
    (table,) = asked.panel().tables()
    assert len(table.rows) == 33 * 33


# --- properties

TARGETS = st.integers(-40, 40).map(lambda eighths: eighths / 8)


@settings(deadline=None, max_examples=40)
@given(TARGETS, TARGETS, TARGETS, st.integers(1, 12))
def test_the_map_is_that_of_sums_over_tokens(target_a: float, target_b: float, theta: float, size: int) -> None:
    got = view(target_a=target_a, target_b=target_b, theta=theta, size=size, a=0, b=0)
    for a in range(size + 1):
        for b in range(size + 1):
            tokens = [theta - target_a] * a + [theta - target_b] * b
            kind, ratio = got["kinds"][a][b], got["ratios"][a][b]
            if a == 0 or b == 0:
                assert (kind, ratio) == ("undefined", None)
                continue
            right, wrong = sum(tokens) / len(tokens), (theta - target_a + theta - target_b) / 2
            if right == 0:
                assert (kind, ratio) == ("zero_reference", None)
            else:
                assert ratio == pytest.approx(wrong / right, rel=1e-12)
                assert kind == ("vanishes" if wrong == 0 else "agree" if wrong * right > 0 else "flipped")


@settings(deadline=None, max_examples=40)
@given(TARGETS, TARGETS, TARGETS, st.integers(1, 12))
def test_the_runs_cover_every_cell_once(target_a: float, target_b: float, theta: float, size: int) -> None:
    got = view(target_a=target_a, target_b=target_b, theta=theta, size=size, a=0, b=0)
    covered = [
        (run["a"], b, area["kind"])
        for area in got["areas"]
        for run in area["runs"]
        for b in range(run["start"], run["stop"] + 1)
    ]
    expected = [(a, b, kind) for a, column in enumerate(got["kinds"]) for b, kind in enumerate(column)]
    assert sorted(covered) == sorted(expected)
    assert sum(got["cells"].values()) == len(expected)


@settings(deadline=None, max_examples=40)
@given(TARGETS, TARGETS, TARGETS, TARGETS)
def test_swapping_the_replicas_mirrors_the_map_and_a_common_shift_changes_nothing(
    target_a: float, target_b: float, theta: float, shift: float
) -> None:
    exactly = [Fraction(value) for value in (target_a, target_b, theta, shift)]
    plain = direction_map(exactly[0], exactly[1], exactly[2], 8)
    mirrored = direction_map(exactly[1], exactly[0], exactly[2], 8)
    shifted = direction_map(exactly[0] + exactly[3], exactly[1] + exactly[3], exactly[2] + exactly[3], 8)
    assert [list(column) for column in zip(*mirrored, strict=True)] == plain
    assert shifted == plain


# --- the panel in words

SHOWN = [
    "",
    "a=5&b=5",
    "a=1&b=2",
    "a=0&b=0",
    "a=0&b=3",
    "target_a=1&target_b=-1",
    "target_a=-3",
    "size=1&a=1&b=1",
    "a=20&b=3",
    "a=99",
]


# --- the program that its page offers


def any_body(source: random.Random) -> Body:
    targets = {name: source.choice([0, 1, "-0.3", "1/3", 2]) for name in ("theta", "target_a", "target_b")}
    return {"size": 9, "a": source.randint(0, 9), "b": source.randint(0, 9), **targets}


PROGRAM = Program(
    prints=["point.reference", "point.replica_mean", "point.ratio", "cells.flipped", "flipped_b"],
    planted=("target_b = 0, 2, -1", "target_b = 0, 2, -1.25"),
    bodies=any_body,
)
