"""Rounds of replicas against torch's SGD, autograd, and exact fractions walked step by step."""

import random
from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st

from tests.kit import Answer, Asked, Body, Program, changed

asked = Asked("local_updates")
answer, view = asked.answer, asked.view


# --- an independent run: replicas that are stepped one by one


class Walk:
    """A run in exact fractions, every step of every replica by itself."""

    def __init__(self, body: Body) -> None:
        self.targets = [Fraction(t) for t in body["targets"]]
        self.curvatures = [Fraction(a) for a in body["curvatures"]]
        self.counts = [Fraction(n) for n in body["samples"]]
        self.start, self.eta = Fraction(body["theta0"]), Fraction(body["inner_lr"])
        self.steps, self.rounds = body["local_steps"], body["rounds"]
        self.lr, self.mu, self.nesterov = Fraction(body["outer_lr"]), Fraction(body["outer_momentum"]), body["nesterov"]
        self.beta = Fraction(body["ema_decay"])

    def mean(self, values: list[Fraction], weighted: bool) -> Fraction:
        counts = self.counts if weighted else [Fraction(1)] * len(values)
        return sum((n * value for n, value in zip(counts, values, strict=True)), Fraction(0)) / sum(counts)

    def gradients(self, places: list[Fraction]) -> list[Fraction]:
        return [a * (x - t) for a, x, t in zip(self.curvatures, places, self.targets, strict=True)]

    def averaged(self, average: Fraction, place: Fraction) -> Fraction:
        return self.beta * average + (1 - self.beta) * place

    def synchronous(self, weighted: bool) -> tuple[list[Fraction], Fraction]:
        place, average, path = self.start, self.start, []
        for step in range(self.steps * self.rounds):
            place -= self.eta * self.mean(self.gradients([place] * len(self.targets)), weighted)
            average = self.averaged(average, place)
            if (step + 1) % self.steps == 0:
                path.append(place)
        return path, average

    def local(
        self, weighted: bool, outer: bool = False, sign: int = 1, reset: bool = False
    ) -> tuple[list[Fraction], list[Fraction], Fraction]:
        place, buffer, path = self.start, None, []
        averages, once = [self.start] * len(self.targets), self.start
        lr, mu = (self.lr, self.mu) if outer else (Fraction(1), Fraction(0))
        for _ in range(self.rounds):
            ends = [place] * len(self.targets)
            for _ in range(self.steps):
                ends = [x - self.eta * g for x, g in zip(ends, self.gradients(ends), strict=True)]
                averages = [self.averaged(e, x) for e, x in zip(averages, ends, strict=True)]
            delta = sign * (place - self.mean(ends, weighted))
            buffer = delta if buffer is None or reset else mu * buffer + delta
            place -= lr * (delta + mu * buffer if self.nesterov or not outer else buffer)
            once = self.averaged(once, place)
            path.append(place)
        return path, averages, once


numbers = st.sampled_from(["0", "1", "-2", "1/3", "0.25", "3"])
positive = st.sampled_from(["0", "1", "1/3", "0.25", "2"])


@st.composite
def bodies(draw: st.DrawFn) -> Body:
    replicas = draw(st.integers(1, 4))
    samples = draw(st.lists(st.integers(0, 5), min_size=replicas, max_size=replicas).filter(any))
    return {
        "targets": [draw(numbers) for _ in range(replicas)],
        "curvatures": [draw(positive) for _ in range(replicas)],
        "samples": samples,
        "theta0": draw(numbers),
        "inner_lr": draw(st.sampled_from(["0", "0.1", "1/3", "1"])),
        "local_steps": draw(st.integers(1, 6)),
        "rounds": draw(st.integers(1, 5)),
        "outer_lr": draw(st.sampled_from(["0", "0.7", "1"])),
        "outer_momentum": draw(st.sampled_from(["0", "0.9", "1/3"])),
        "nesterov": draw(st.booleans()),
        "ema_decay": draw(st.sampled_from(["0", "0.9", "1"])),
    }


def walked(body: Body) -> dict[str, list[Fraction]]:
    run = Walk(body)
    return {
        "synchronous": run.synchronous(True)[0],
        "synchronous_uniform": run.synchronous(False)[0],
        "local_mean": run.local(False)[0],
        "local_weighted": run.local(True)[0],
        "outer": run.local(False, outer=True)[0],
        "outer_weighted": run.local(True, outer=True)[0],
        "outer_momentum_reset": run.local(True, outer=True, reset=True)[0],
        "outer_sign_flipped": run.local(True, outer=True, sign=-1)[0],
    }


@given(bodies())
@settings(max_examples=80, deadline=None)
def test_every_rule_ends_every_round_where_a_walk_step_by_step_does(body: Body) -> None:
    got, paths = answer(body), walked(body)
    for name, path in paths.items():
        scheme, right = got["schemes"][name], paths["synchronous"]
        assert scheme["path"] == list(map(float, path))
        assert Fraction(scheme["final_exact"]) == path[-1]
        assert Fraction(scheme["difference_exact"]) == path[-1] - right[-1]
        assert scheme["matches_reference"] == (path == right)
        moved = right[-1] - Fraction(body["theta0"])
        assert scheme["progress_ratio"] == (float((path[-1] - Fraction(body["theta0"])) / moved) if moved else None)
        assert (scheme["reason"] == "zero_reference") == (not moved)


@given(bodies())
@settings(max_examples=60, deadline=None)
def test_moving_averages_are_those_of_a_walk_step_by_step(body: Body) -> None:
    run, got = Walk(body), answer(body)["ema"]
    _, own, once = run.local(True)
    expected = {
        "of_synchronous": run.synchronous(True)[1],
        "replica_zero": own[0],
        "weighted_mean_over_replicas": run.mean(own, True),
        "once_a_round": once,
    }
    assert {name: Fraction(got[f"{name}_exact"]) for name in expected} == expected
    assert {name: got[name] for name in expected} == {name: float(value) for name, value in expected.items()}


@pytest.mark.parametrize("rounds", [1, 7, 40])
def test_the_outer_step_is_that_of_torchs_sgd_on_the_pseudo_gradient(rounds: int) -> None:
    body: Body = {"targets": [2, -1, 0.5], "curvatures": [1, 3, 0.5], "samples": [1, 2, 5], "rounds": rounds}
    settings_: Body = {"local_steps": 5, "outer_lr": "0.7", "outer_momentum": "0.9"}
    for nesterov in (True, False):
        theta = torch.zeros((), dtype=torch.float64)
        outer = torch.optim.SGD([theta], lr=0.7, momentum=0.9, nesterov=nesterov)
        for _ in range(rounds):
            ends = []
            for t, a in zip(body["targets"], body["curvatures"], strict=True):
                own = theta.clone().requires_grad_()
                inner = torch.optim.SGD([own], lr=0.1)
                for _ in range(5):
                    inner.zero_grad()
                    (a / 2 * (own - t) ** 2).backward()  # type: ignore[no-untyped-call]
                    inner.step()
                ends.append(own.detach())
            theta.grad = theta - (torch.stack(ends) * torch.tensor([1, 2, 5]) / 8).sum()
            outer.step()
        got = answer({**body, **settings_}, nesterov=nesterov)["schemes"]["outer_weighted"]
        assert got["final"] == pytest.approx(theta.item(), rel=1e-12)


def test_one_local_step_or_equal_curvatures_make_the_weighted_mean_the_synchronous_run() -> None:
    alike: Body = {"targets": [2, -1, 7], "samples": [1, 2, 4], "rounds": 3}
    for body in ({**alike, "curvatures": [1, 3, 2], "local_steps": 1}, {**alike, "local_steps": 9}):
        schemes = answer(body)["schemes"]
        assert schemes["local_weighted"]["matches_reference"]
        assert not schemes["local_mean"]["matches_reference"]
        assert not schemes["outer_sign_flipped"]["matches_reference"]
    assert not answer(alike, curvatures=[1, 3, 2], local_steps=2)["schemes"]["local_weighted"]["matches_reference"]


@pytest.mark.parametrize(("steps", "difference"), [(2, 0), (3, 0.0005), (4, 0.001775)])
def test_equal_gradients_at_the_start_cancel_the_drift_of_two_steps_and_no_more(steps: int, difference: float) -> None:
    """Both gradients are -2 at 0; what is left begins with η³ times 2 times the variance of the curvatures."""
    got = answer(targets=[2, 1], curvatures=[1, 2], local_steps=steps, rounds=1)["schemes"]["local_mean"]
    assert got["difference"] == pytest.approx(difference, abs=1e-12)


@pytest.mark.parametrize("steps", [1, 4, 64, 100])
def test_local_means_come_to_rest_where_drift_leaves_them(steps: int) -> None:
    """The fixed point of Σ w_r·T_r^H, from each replica's own contraction 1 - (1 - ηa_r)^H."""
    pull = [1 - Fraction(9, 10) ** steps, 1 - Fraction(7, 10) ** steps]
    rest = (2 * pull[0] - pull[1]) / (pull[0] + pull[1])
    got = answer(targets=[2, -1], curvatures=[1, 3], local_steps=steps, rounds=900)["schemes"]
    assert got["local_mean"]["final"] == pytest.approx(float(rest), abs=1e-12)
    assert got["synchronous"]["final"] == pytest.approx(-0.25, abs=1e-12)
    assert got["local_mean"]["matches_reference"] == (steps == 1)


def test_beyond_the_exact_steps_float64_agrees_with_fractions_to_nine_digits() -> None:
    body: Body = {"targets": [2, -1], "curvatures": [1, 3], "samples": [1, 3], "local_steps": 13, "rounds": 9}
    body |= {"outer_lr": "0.7", "outer_momentum": "0.9", "ema_decay": "0.99", "nesterov": True, "theta0": 0}
    body |= {"inner_lr": "0.1"}
    got, run = answer(body), Walk(body)
    assert got["schemes"]["outer"]["final_exact"] is None
    for name, path in walked(body).items():
        assert got["schemes"][name]["path"] == pytest.approx(list(map(float, path)), rel=1e-9)
    assert got["ema"]["replica_zero"] == pytest.approx(float(run.local(True)[1][0]), rel=1e-9)
    assert got["ema"]["of_synchronous_exact"] is None


def test_fractions_that_would_grow_without_end_are_left_to_float64() -> None:
    targets = [f"1/{10**17 + 3 * i}" for i in range(64)]
    got = answer(targets=targets, local_steps=1, rounds=64, inner_lr="1/999999999999999989")
    assert got["schemes"]["local_mean"]["final_exact"] is None
    assert answer(targets=targets[:2], local_steps=1, rounds=2)["schemes"]["local_mean"]["final_exact"]


def test_a_reference_that_stays_has_no_progress_and_a_path_too_long_is_left_out() -> None:
    got = answer(targets=[1, -1], rounds=2)["schemes"]
    assert (got["local_mean"]["progress_ratio"], got["local_mean"]["reason"]) == (None, "zero_reference")
    assert got["outer"]["final"] == 0
    long = answer(targets=[0], theta0=0, local_steps=1, rounds=10_001)["schemes"]["local_mean"]
    assert (long["path"], long["final"], long["reductions"]) == (None, 0, 10_001)


def test_communication_is_once_a_step_or_once_a_round() -> None:
    counted = {name: scheme["reductions"] for name, scheme in view()["schemes"].items()}
    assert {name for name, times in counted.items() if times == 12} == {"synchronous", "synchronous_uniform"}
    assert set(counted.values()) == {12, 3}


def test_the_panel_shows_replicas_that_part_and_come_together() -> None:
    got = view()
    rounds: list[Answer] = got["shown"]
    assert (got["selected"], len(rounds), got["current"]["final_exact"]) == (
        "outer",
        3,
        "-186720531502053997/2000000000000000000",
    )
    assert [one["end"] for one in rounds] == pytest.approx(got["current"]["path"])
    assert [path[-1] for path in rounds[0]["replicas"]] == pytest.approx([-delta for delta in got["deltas"]])
    assert [one["synchronous"][-1] for one in rounds] == pytest.approx(got["schemes"]["synchronous"]["path"])
    assert view(scheme="synchronous")["shown"][2]["replicas"][0] == view()["shown"][2]["synchronous"]


REFUSED_BODIES = changed(
    {"targets": [2, -1]},
    [
        ({"targets": []}, "targets"),
        ({"targets": ["x"]}, "targets"),
        ({"targets": [1] * 4097}, "targets"),
        ({"curvatures": [1]}, "curvatures"),
        ({"curvatures": [1, -1]}, "curvatures"),
        ({"samples": [1, 2, 3]}, "samples"),
        ({"samples": [0, 0]}, "samples"),
        ({"samples": [1, "0.5"]}, "samples"),
        ({"samples": [1, -1]}, "samples"),
        ({"theta0": "inf"}, "theta0"),
        ({"inner_lr": -1}, "inner_lr"),
        ({"inner_lr": "nan"}, "inner_lr"),
        ({"local_steps": 0}, "local_steps"),
        ({"local_steps": 1.5}, "local_steps"),
        ({"rounds": 0}, "rounds"),
        ({"local_steps": 1000, "rounds": 101}, "rounds"),
        ({"outer_lr": -1}, "outer_lr"),
        ({"outer_momentum": "-0.9"}, "outer_momentum"),
        ({"nesterov": "maybe"}, "nesterov"),
        ({"ema_decay": 2}, "ema_decay"),
        ({"inner_lr": 50, "local_steps": 1000, "rounds": 100}, "inner_lr"),
        ({"inner_lr": 1e308, "local_steps": 2}, "inner_lr"),
        ({"outer_lr": 50, "local_steps": 1, "rounds": 1000}, "outer_lr"),
        ({"outer_momentum": 3, "local_steps": 1, "rounds": 1000}, "outer_momentum"),
        ({"local_steps": 1, "rounds": 20_000}, "rounds"),
        ({"steps": 4}, "steps"),
    ],
)
REFUSED_FIELDS = {
    "samples": ["0,0"],
    "curvatures": ["1"],
    "scheme": ["fedavg"],
}


# --- the program that its page offers


def any_body(source: random.Random) -> Body:
    replicas = source.randint(1, 4)
    body: Body = {
        "targets": [source.randint(-8, 8) / 4 for _ in range(replicas)],
        "theta0": source.choice(["0", "-1.5"]),
        "inner_lr": source.choice(["0.1", "1/3"]),
        "local_steps": source.randint(1, 5),
        "rounds": source.randint(1, 4),
        "outer_lr": source.choice(["1", "0.7"]),
        "outer_momentum": source.choice(["0", "0.9"]),
        "nesterov": source.choice([True, False]),
        "ema_decay": source.choice([None, "0.9"]),
    }
    optional: dict[str, Any] = {
        "curvatures": [source.randint(0, 8) / 4 for _ in range(replicas)],
        "samples": [source.randint(1, 9) for _ in range(replicas)],
    }
    return body | {name: value for name, value in optional.items() if source.random() < 0.7}


PROGRAM = Program(
    prints=["schemes.outer.path", "schemes.local_mean.difference", "deltas", "weights"],
    planted=("targets = [2, -1]", "targets = [2, -2]"),
    bodies=any_body,
)
