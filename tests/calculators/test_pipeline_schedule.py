"""Weights against autograd and torch's own scaling, orders against torch's schedules, times against a simulation."""

import random
from fractions import Fraction
from importlib import import_module
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st

from samestep.app.calculators.pipeline_schedule.timing import BACKWARD_SLOTS, bubble, in_flight, order, slots
from tests.kit import Asked, Body, Program, quarters

asked = Asked("pipeline_schedule")
answer, view, view_refusal = asked.answer, asked.view, asked.view_refusal
Tensor = torch.Tensor


def pipelining(name: str) -> Any:
    """A module of torch's pipelining, which takes a second to import: not where tests are only collected."""
    return import_module(f"torch.distributed.pipelining.{name}")


# --- weights


class Model(torch.nn.Module):
    """A parameter whose gradient in a microbatch is that microbatch's row."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(width, dtype=torch.float64))

    def loss(self, row: Tensor) -> Tensor:
        return (self.weight * row).sum()

    @property
    def gradient(self) -> list[float]:
        assert self.weight.grad is not None
        return self.weight.grad.tolist()  # type: ignore[no-any-return]


PARTS = [[[1.0, 2.0], [2.0, -1.0]], [[3.0, 1.0], [4.0, 0.0], [0.5, 2.0]], [[-1.0, 1.5]]]
COUNTS = [[2, 8], [5, 1, 3], [4]]
CALLS = len(PARTS)
TOTAL = 23


def run(loss: Any, scale: bool = False, wipe_calls: bool = False, wipe_microbatches: bool = False) -> list[float]:
    """`.grad` after all calls, scaled after each one by torch's own stage where `scale` says so."""
    model = Model(2)
    for rows, counts in zip(PARTS, COUNTS, strict=True):
        if wipe_calls:
            model.zero_grad()
        for row, count in zip(rows, counts, strict=True):
            if wipe_microbatches:
                model.zero_grad()
            loss(model.loss(torch.tensor(row, dtype=torch.float64)), count, len(rows)).backward()
        if scale:
            pipelining("stage").PipelineStage.scale_grads(SimpleNamespace(submod=model), len(rows))
    return model.gradient


@pytest.mark.parametrize(
    ("scheme", "found"),
    [
        ("loss_divided_not_scaled", run(lambda mean, count, n: mean / n / CALLS)),
        ("global_count", run(lambda mean, count, n: mean * count / TOTAL)),
        ("sum_loss", run(lambda mean, count, n: mean * count)),
        ("not_divided", run(lambda mean, count, n: mean / CALLS)),
        ("rescaled_after_every_call", run(lambda mean, count, n: mean / CALLS, scale=True)),
        ("wiped_between_calls", run(lambda mean, count, n: mean / CALLS, scale=True, wipe_calls=True)),
        ("wiped_between_microbatches", run(lambda mean, count, n: mean / CALLS, scale=True, wipe_microbatches=True)),
    ],
)
def test_a_gradient_is_that_of_autograd_call_by_call(scheme: str, found: list[float]) -> None:
    got = answer(parts=PARTS, counts=COUNTS)
    assert got["schemes"][scheme]["grad"] == pytest.approx(found, rel=1e-12)
    assert (got["reference"]["grad"] == pytest.approx(found, rel=1e-6)) is (scheme == "global_count")


@given(st.integers(1, 5))
@settings(max_examples=10, deadline=None)
def test_torchs_scaling_is_right_for_one_call_and_a_moving_average_for_several(calls: int) -> None:
    got = answer(parts=[[1] * 4] * calls)
    right, rescaled = got["schemes"]["mean_loss_scaled_once"], got["schemes"]["rescaled_after_every_call"]
    assert right["matches_reference"] is True
    assert rescaled["matches_reference"] is (calls == 1)
    older, newer = (Fraction(rescaled["weights_exact"][k][0]) for k in (0, -1))
    assert older * 4 ** (calls - 1) == newer == Fraction(1, 4 * calls)


@given(st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=4), min_size=1, max_size=4))
@settings(max_examples=60, deadline=None)
def test_the_global_count_is_right_and_a_mean_of_means_only_where_it_weighs_all_alike(counts: list[list[int]]) -> None:
    got = answer(parts=[[1] * len(row) for row in counts], counts=counts)["schemes"]
    assert got["global_count"]["matches_reference"] is True
    flat = [count for row in counts for count in row]
    even = len({count * len(row) for row in counts for count in row}) == 1  # few tokens among many microbatches
    assert got["mean_loss_scaled_once"]["matches_reference"] is even
    assert got["sum_loss"]["uniform_factor_exact"] == str(sum(flat))
    assert got["mean_loss_scaled_once"]["total_weight_exact"] == "1"


def test_a_microbatch_without_labels_has_no_mean_and_weighs_nothing_in_a_sum() -> None:
    got = answer(parts=[[1, 2], [3, 4]], counts=[[2, 0], [3, 4]])["schemes"]
    assert (got["mean_loss_scaled_once"]["grad"], got["mean_loss_scaled_once"]["reason"]) == (None, "empty_cell")
    assert got["global_count"]["grad"] == pytest.approx([(2 + 9 + 16) / 9], rel=1e-12)
    assert got["sum_loss"]["uniform_factor_exact"] == "9"
    assert got["wiped_between_calls"]["defined"] is True  # the empty one is gone with the first call


def test_without_any_label_there_is_nothing_to_compare_with() -> None:
    got = answer(parts=[[1, 2]], counts=[[0, 0]])
    assert (got["reference"]["defined"], got["reference"]["reason"]) == (False, "zero_count")
    assert got["schemes"]["global_count"]["reason"] == "zero_count"
    assert got["schemes"]["sum_loss"]["grad"] == [0]


def test_many_microbatches_are_weighed_as_few_are() -> None:
    parts = [[1 + (k * j) % 7 for j in range(50)] for k in range(100)]
    many, few = answer(parts=parts), answer(parts=parts[:80])
    assert many["reference"]["weights_exact"] is None
    assert few["reference"]["weights_exact"] is not None
    grad = sum(map(sum, parts)) / 5000
    assert many["schemes"]["mean_loss_scaled_once"]["grad"] == pytest.approx([grad], rel=1e-12)
    assert many["schemes"]["mean_loss_scaled_once"]["matches_reference"] is True
    assert many["schemes"]["divided_twice"]["uniform_factor"] == pytest.approx(1 / 50, rel=1e-12)
    assert many["schemes"]["rescaled_after_every_call"]["matches_reference"] is False


# --- the order of work


class Recorder:
    """A stage that computes nothing and notes what torch's schedule asks of it."""

    def __init__(self, index: int) -> None:
        self.stage_index, self.done, self.has_backward = index, list[str](), True
        self.is_last = False

    def forward_one_chunk(self, microbatch: int, *_: Any, **__: Any) -> None:
        self.done.append(f"F{microbatch}")

    def backward_one_chunk(self, microbatch: int, *_: Any, **__: Any) -> None:
        self.done.append(f"B{microbatch}")

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: []


@pytest.mark.parametrize(("stages", "microbatches"), [(2, 2), (4, 4), (3, 7), (4, 9), (1, 3)])
def test_orders_are_those_that_torchs_schedules_carry_out(
    stages: int, microbatches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.distributed.pipelining.schedules._batch_p2p", lambda *_, **__: [])
    monkeypatch.setattr("torch.distributed.pipelining.schedules._wait_batch_p2p", lambda *_: None)
    schedules = pipelining("schedules")
    for schedule, kind in (("1f1b", schedules.Schedule1F1B), ("gpipe", schedules.ScheduleGPipe)):
        got = answer(parts=[[1] * microbatches], stages=stages, schedule=schedule)["timing"]
        for index in range(stages):
            stage = Recorder(index)
            own = SimpleNamespace(
                _n_microbatches=microbatches,
                _num_stages=stages,
                _stage=stage,
                scale_grads=True,
                _check_inputs=lambda *_, n=microbatches: ([()] * n, [{}] * n),
                _initialize_stage=lambda *_: None,
                _maybe_compute_loss=lambda *_: None,
                _maybe_get_loss=lambda *_: None,
                _update_losses=lambda *_: None,
            )
            kind._step_microbatches(own)
            assert got["order"][index] == stage.done, (schedule, index)


@given(st.sampled_from(["1f1b", "gpipe"]), st.integers(1, 7), st.integers(1, 12))
@settings(max_examples=80, deadline=None)
def test_a_stage_keeps_and_waits_as_long_as_the_formulas_say(schedule: Any, stages: int, microbatches: int) -> None:
    placed = slots(schedule, stages, microbatches)
    end = max(bar.start + bar.length for row in placed for bar in row)
    for stage, row in enumerate(placed):
        assert all(one.start + one.length <= other.start for one, other in pairwise(row))
        kept = most = 0
        for bar in row:
            kept += 1 if bar.kind == "F" else -1
            most = max(most, kept)
        assert most == in_flight(schedule, stages, microbatches)[stage]
        busy = microbatches * (1 + BACKWARD_SLOTS)
        assert Fraction(end - busy, end) == bubble(stages, microbatches)
        for bar in row:  # nothing before its input
            near = stage - 1 if bar.kind == "F" else stage + 1
            if 0 <= near < stages:
                needed = next(b for b in placed[near] if (b.kind, b.microbatch) == (bar.kind, bar.microbatch))
                assert needed.start + needed.length <= bar.start
    assert [f"{kind}{j}" for kind, j in order(microbatches, microbatches)][:microbatches] == [
        f"F{j}" for j in range(microbatches)
    ]


def test_both_schedules_have_the_same_gradient() -> None:
    one, other = (answer(parts=PARTS, counts=COUNTS, stages=3, schedule=name) for name in ("1f1b", "gpipe"))
    assert one["schemes"] == other["schemes"]
    assert one["timing"]["bubble_exact"] == other["timing"]["bubble_exact"]
    assert one["timing"]["order"] != other["timing"]["order"]


def test_what_is_too_long_to_list_is_left_out_and_the_rest_answered() -> None:
    got = view(stages="4096", parts=",".join(["1"] * 40))
    assert (got["timing"]["order"], got["grid"], len(got["timing"]["in_flight"])) == (None, None, 4096)
    assert got["timing"]["bubble_exact"] == "819/827"


# --- the tied weight


@given(st.fractions(-5, 5, max_denominator=8), st.fractions(-5, 5, max_denominator=8))
@settings(max_examples=40, deadline=None)
def test_a_tied_weight_steps_as_one_tensor_used_at_both_ends_does(first: Fraction, last: Fraction) -> None:
    weight = torch.nn.Parameter(torch.tensor(1.0, dtype=torch.float64))
    (weight * float(first) + weight * float(last)).backward()
    torch.optim.SGD([weight], lr=0.1).step()
    tied = answer(parts=[[1]], tied={"first": str(first), "last": str(last), "lr": "0.1"})["tied"]
    assert tied["summed"]["first_after"] == pytest.approx(weight.item(), abs=1e-12)
    assert tied["summed"]["same"] is tied["averaged"]["same"] is True
    assert tied["not_summed"]["same"] is (first == last)
    assert (tied["averaged"]["first_after"] == tied["summed"]["first_after"]) is (first + last == 0)


REFUSED_BODIES = [
    ({"parts": []}, "parts"),
    ({"parts": [[]]}, "parts.0"),
    ({"parts": [[1], []]}, "parts.1"),
    ({"parts": [[[1, 2], [3]]]}, "parts.0.1"),
    ({"parts": [[1, [2]]]}, "parts.0.1"),
    ({"parts": [[[]]]}, "parts.0.0"),
    ({"parts": [["nan"]]}, "parts.0.0"),
    ({"parts": [["1e308", "1e308"]], "counts": [[9, 9]]}, "parts.0.0"),
    ({"parts": [[1]] * 4097}, "parts"),
    ({"parts": [[1, 2]], "counts": [[1]]}, "counts.0"),
    ({"parts": [[1, 2]], "counts": [[1, 1], [1, 1]]}, "counts"),
    ({"parts": [[1]], "counts": [["1/2"]]}, "counts.0.0"),
    ({"parts": [[1]], "counts": [[-1]]}, "counts.0.0"),
    ({"parts": [[1]], "stages": 0}, "stages"),
    ({"parts": [[1]], "stages": 4097}, "stages"),
    ({"parts": [[1]], "schedule": "zb"}, "schedule"),
    ({"parts": [[1]], "tied": {"first": 1}}, "tied.last"),
    ({"parts": [[1]], "tied": {"first": 1, "last": "inf"}}, "tied.last"),
    ({"parts": [[1]], "tied": {"first": 1, "last": 2, "lr": -1}}, "tied.lr"),
]


def test_the_panel_wants_two_ends_or_none() -> None:
    assert view_refusal(tied="1").field == "tied"
    assert view(tied="")["tied"] is None


# --- the program that its page offers


def any_body(source: random.Random) -> Body:
    sizes = [source.randint(1, 4) for _ in range(source.randint(1, 3))]
    width = source.choice([0, 1, 3])
    cell = (lambda: quarters(source, width)) if width else (lambda: quarters(source))
    return {
        "parts": [[cell() for _ in range(size)] for size in sizes],
        "counts": source.choice([None, [[source.randint(0, 9) for _ in range(size)] for size in sizes]]),
        "stages": source.randint(1, 5),
        "schedule": source.choice(["1f1b", "gpipe"]),
        "tied": source.choice([None, {"first": 3, "last": -4, "weight": "1/3", "lr": "0.25"}]),
    }


PROGRAM = Program(
    prints=["schemes.rescaled_after_every_call.grad", "schemes.mean_loss_scaled_once.weights", "timing.bubble"],
    planted=("p.grad.div_(n)", "p.grad.div_(n + 1)"),
    bodies=any_body,
)
