"""Which backward communicates, against the torch 2.13 that the experiment of the same name measured.

Real DDP and FSDP2 are run by the experiment, whose test compares every `.grad`; here are the panel's facts, an
independent account by linear algebra, and what is refused.
"""

import random
from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st

from samestep.app.calculators.no_sync_timeline.wrappers import buckets
from tests.kit import Asked, Body, Program

asked = Asked("no_sync_timeline")
answer, view, view_refusal = asked.answer, asked.view, asked.view_refusal
RIGHT = {
    "ddp": {"last_synchronised", "every_backward", "backward_inside", "one_backward"},
    "fsdp2": {
        "last_synchronised",
        "every_backward",
        "backward_inside",
        "forward_inside",
        "forwards_first",
        "one_backward",
    },
}
"""Of a window of several microsteps whose ranks differ."""


def backwards(scheme: Any) -> list[Any]:
    return [event for event in scheme["events"] if event["kind"] == "backward"]


def test_the_panel_opens_with_replicas_that_part_although_one_backward_was_reduced() -> None:
    got = view()
    assert got["selected"] == "forwards_first"
    assert [event["grad"] for event in backwards(got["current"])] == [[2, 2], [4, 8], [8, 20]]
    assert (got["reference"], got["current"]["reductions"]) == (14, 1)
    assert not got["current"]["replicas_agree"]


def window_of(microsteps: int) -> st.SearchStrategy[list[list[int]]]:
    row = st.lists(st.integers(-9, 9), min_size=microsteps, max_size=microsteps)
    return st.lists(row, min_size=2, max_size=4)


@pytest.mark.parametrize("wrapper", ["ddp", "fsdp2"])
@given(
    st.integers(2, 4).flatmap(
        lambda k: st.lists(st.lists(st.integers(-9, 9), min_size=k, max_size=k), min_size=2, max_size=4)
    )
)
@settings(max_examples=40, deadline=None)
def test_a_program_is_right_when_every_microstep_is_reduced_once_and_in_time(
    wrapper: str, rows: list[list[int]]
) -> None:
    """By linearity: the right ones are right for all gradients, the wrong ones for none but lucky ones."""
    got = answer(gradients=rows, wrapper=wrapper)
    window = torch.tensor(rows, dtype=torch.float64)
    assert got["reference"] == pytest.approx(float(window.sum(1).mean()), abs=1e-12)
    for name in RIGHT[wrapper]:
        assert got["schemes"][name]["matches_reference"], name
        assert got["schemes"][name]["final"] == [pytest.approx(got["reference"], abs=1e-12)] * len(rows)
    own = window.sum(1).tolist()
    if wrapper == "ddp":
        assert got["schemes"]["never"]["final"] == own == got["schemes"]["forward_inside"]["final"]
        later = window[:, 0].mean() + window[:, 1:].sum(1)
        assert got["schemes"]["forwards_first"]["final"] == pytest.approx(later.tolist(), abs=1e-12)
        assert got["schemes"]["last_left_out"]["final"] == pytest.approx(
            (window[:, :-1].sum(1).mean() + window[:, -1]).tolist(), abs=1e-12
        )
    else:
        assert got["schemes"]["never"]["final"] == [None] * len(rows)
        assert got["schemes"]["never"]["left_behind"] == own
        assert got["schemes"]["last_left_out"]["left_behind"] == window[:, -1].tolist()


@pytest.mark.parametrize(
    ("scheme", "ddp", "fsdp2"),
    [
        ("last_synchronised", 1, 1),
        ("every_backward", 3, 3),
        ("backward_inside", 3, 1),
        ("forward_inside", 0, 1),
        ("never", 0, 0),
        ("last_left_out", 2, 2),
        ("forwards_first", 1, 3),
        ("one_backward", 1, 1),
    ],
)
def test_ddp_looks_at_the_forward_and_fsdp2_at_the_backward(scheme: str, ddp: int, fsdp2: int) -> None:
    for wrapper, reductions in (("ddp", ddp), ("fsdp2", fsdp2)):
        got = answer(wrapper=wrapper, parameters=[1000] * 4, dtype="float64")["schemes"][scheme]
        assert got["reductions"] == reductions
        assert got["collectives"] == reductions * (1 if wrapper == "ddp" else 4)  # 32 kB: one bucket; four groups


@pytest.mark.parametrize(
    ("sizes", "cap", "found", "unused"),
    [
        ((100, 100, 100), None, [300], [300]),
        ((100, 100, 100), "0.0007", [100, 100, 100], [100, 100, 100]),
        ((100, 100, 100), "0.001", [200, 100], [100, 200]),
        ((100, 100, 100), "0.0016", [300], [300]),
        ((10, 200, 10, 10, 200, 10), "0.001", [210, 220, 10], [10, 220, 210]),
        ((140_000,) * 4, None, [140_000, 420_000], [420_000, 140_000]),
        ((131_072, 131_072, 10), None, [131_082, 131_072], [131_082, 131_072]),
        ((3_300_000, 20, 30), None, [3_300_050], [50, 3_300_000]),
    ],
)
def test_the_buckets_are_those_that_torch_made_of_float64_parameters(
    sizes: tuple[int, ...], cap: str | None, found: list[int], unused: list[int]
) -> None:
    """Read from DDP's reducer on torch 2.13, after the second backward."""
    given_cap = None if cap is None else Fraction(cap)
    assert buckets(sizes, 8, given_cap, find_unused=False) == found
    assert buckets(sizes, 8, given_cap, find_unused=True) == unused


@pytest.mark.parametrize(("unused", "outcome"), [("one_rank", "waits"), ("everywhere", "raises")])
def test_a_parameter_without_gradient_stops_ddp_unless_it_looks_for_it(unused: str, outcome: str) -> None:
    got = answer(unused=unused)["schemes"]
    assert {name for name, scheme in got.items() if scheme["outcome"] == "steps"} == {"forward_inside", "never"}
    assert got["last_synchronised"]["outcome"] == outcome
    assert (got["last_synchronised"]["final"], got["last_synchronised"]["reason"]) == ([None, None], "not_reached")
    looked = answer(unused=unused, find_unused_parameters=True)
    assert looked["schemes"]["last_synchronised"]["matches_reference"]
    assert looked["schemes"]["last_synchronised"]["collectives"] == len(looked["buckets"]) + 1  # and the map of uses


@pytest.mark.parametrize(("ranks", "groups"), [(2, 2), (4, 2), (4, 4), (6, 3), (4, 1)])
def test_hybrid_sharding_is_right_if_what_groups_gathered_meets(ranks: int, groups: int) -> None:
    source = random.Random(ranks * 10 + groups)
    rows = [[source.randint(-9, 9) for _ in range(3)] for _ in range(ranks)]
    got = answer(gradients=rows, wrapper="hsdp", replica_groups=groups, parameters=[7, 5])
    window = torch.tensor(rows, dtype=torch.float64)
    of_groups = window.view(groups, -1, 3).mean(1).repeat_interleave(ranks // groups, 0)
    scatters, mean = int(groups < ranks), float(window.sum(1).mean())
    for name in RIGHT["fsdp2"]:
        assert got["schemes"][name]["final"] == pytest.approx([mean] * ranks, abs=1e-12), name
    last = got["schemes"]["last_synchronised"]
    assert [event["collectives"] for event in backwards(last)] == [2 * scatters, 2 * scatters, 2 + 2 * scatters]
    shard = sum(-(-size // (ranks // groups)) for size in (7, 5))
    assert last["elements_reduced"] == 3 * 12 * scatters + shard
    assert got["schemes"]["never"]["left_behind"] == pytest.approx(of_groups.sum(1).tolist(), abs=1e-12)
    apart = got["schemes"]["added_after_all_reduce"]["final"]
    assert apart == pytest.approx((of_groups[:, :2].sum(1) + window[:, 2].mean()).tolist(), abs=1e-12)


def test_without_hybrid_sharding_nothing_is_added_after_an_all_reduce() -> None:
    assert all("added_after_all_reduce" not in answer(wrapper=wrapper)["schemes"] for wrapper in ("ddp", "fsdp2"))
    assert view_refusal(scheme="added_after_all_reduce").field == "scheme"


def test_a_program_of_ones_own_is_run_beside_the_named_ones() -> None:
    own = {"name": "mine", "forward": [False, True, False], "backward": [False, True, False]}
    got = answer(programs=[own])["schemes"]["mine"]
    assert got["final"] == [10, 18]  # the mean of both first ones, then each rank's own last
    assert answer(programs=[own], wrapper="fsdp2")["schemes"]["mine"]["final"] == [6, 6]


REFUSED_BODIES = [
    ({"gradients": [[1, 2], [3]]}, "gradients"),
    ({"gradients": [[1, 2]]}, "gradients"),
    ({"gradients": [[], []]}, "gradients"),
    ({"gradients": [[1], ["x"]]}, "gradients.1.0"),
    ({"wrapper": "fsdp2", "unused": "one_rank"}, "unused"),
    ({"wrapper": "fsdp2", "bucket_cap_mb": 25}, "bucket_cap_mb"),
    ({"wrapper": "fsdp2", "find_unused_parameters": True}, "find_unused_parameters"),
    ({"wrapper": "hsdp", "unused": "one_rank"}, "unused"),
    ({"wrapper": "hsdp", "replica_groups": 3}, "replica_groups"),
    ({"wrapper": "hsdp", "gradients": [[1], [2], [3]]}, "replica_groups"),
    ({"wrapper": "fsdp2", "replica_groups": 2}, "replica_groups"),
    ({"parameters": [0]}, "parameters"),
    ({"bucket_cap_mb": 0}, "bucket_cap_mb"),
    ({"programs": [{"name": "a", "forward": [True], "backward": [True]}]}, "programs"),
    ({"programs": [{"name": "never", "forward": [True] * 3, "backward": [True] * 3}]}, "programs"),
]
REFUSED_FIELDS = {
    "gradients": ["1,2"],
}


def any_body(draw: random.Random) -> Body:
    wrapper = draw.choice(["ddp", "fsdp2", "hsdp"])
    ranks, microsteps = 4 if wrapper == "hsdp" else draw.randint(2, 4), draw.randint(1, 5)
    rows = [[draw.choice([draw.randint(-9, 9), "1/3", 0.5]) for _ in range(microsteps)] for _ in range(ranks)]
    groups = {"replica_groups": draw.choice([None, 1, 4])} if wrapper == "hsdp" else {}
    return {"gradients": rows, "wrapper": wrapper, **groups}


PROGRAM = Program(
    prints=["reference", "schemes.forwards_first.final", "schemes.backward_inside.reductions"],
    planted=("last = [*off[1:], True]", "last = [*off[1:], False]"),
    bodies=any_body,
)
