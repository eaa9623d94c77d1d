"""The noise against exact enumeration of small populations, the covariance of single tokens, and simulation."""

import math
import random
from fractions import Fraction
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from samestep.app.calculators.batch_noise import Inputs, Query, compute
from tests.kit import Answer, Asked, Body, Program, quarters

asked = Asked("batch_noise")
answer, view = asked.answer, asked.view

Moments = tuple[Fraction, Fraction]


# --- enumeration: every batch that can be drawn, with its probability, exactly


def variance_of_sum(length: int, sigma: Fraction, rho: Fraction) -> Fraction:
    """Var of a sequence's gradient sum: all entries of its tokens' covariance matrix, added."""
    return sum(
        (sigma * sigma * (1 if i == j else rho) for i in range(length) for j in range(length)),
        Fraction(0),
    )


def enumerated(body: Answer, batch: int) -> dict[str, Moments]:
    """Expectation and variance of the three estimates, by the laws of total expectation and variance."""
    lengths, sigma, rho = body["lengths"], Fraction(body["sigma"]), Fraction(body["rho"])
    counts = [Fraction(c) for c in body["counts"]]
    shares = [c / sum(counts) for c in counts]
    means = [Fraction(m) for m in body["means"]]
    expected = sum((s * length for s, length in zip(shares, lengths, strict=True)), Fraction(0))
    spread = [variance_of_sum(length, sigma, rho) for length in lengths]
    moments: dict[str, list[tuple[Fraction, Fraction, Fraction]]] = {}
    for drawn in product(range(len(lengths)), repeat=batch):
        chance = math.prod((shares[i] for i in drawn), start=Fraction(1))
        tokens = sum(lengths[i] for i in drawn)
        weights = {
            "mean_of_means": [Fraction(1, batch * lengths[i]) for i in drawn],
            "over_actual_count": [Fraction(1, tokens) for _ in drawn],
            "over_expected_count": [1 / (batch * expected) for _ in drawn],
        }
        for name, each in weights.items():
            mean = sum((w * lengths[i] * means[i] for w, i in zip(each, drawn, strict=True)), Fraction(0))
            inner = sum((w * w * spread[i] for w, i in zip(each, drawn, strict=True)), Fraction(0))
            moments.setdefault(name, []).append((chance, mean, inner))
    found = {}
    for name, cases in moments.items():
        mean = sum((chance * value for chance, value, _ in cases), Fraction(0))
        second = sum((chance * (value * value + inner) for chance, value, inner in cases), Fraction(0))
        found[name] = mean, second - mean * mean
    return found


@st.composite
def populations(draw: st.DrawFn) -> Answer:
    size = draw(st.integers(1, 4))
    eighths = st.integers(-24, 24).map(lambda n: n / 8)
    return {
        "lengths": draw(st.lists(st.integers(1, 9), min_size=size, max_size=size)),
        "counts": draw(st.lists(st.integers(1, 5), min_size=size, max_size=size)),
        "means": draw(st.lists(eighths, min_size=size, max_size=size)),
        "sigma": draw(st.integers(0, 24).map(lambda n: n / 8)),
        "rho": draw(st.integers(0, 8).map(lambda n: n / 8)),
        "batch_sizes": [1, 2, 3, 4],
        "objective": draw(st.sampled_from(["per_sequence", "per_token"])),
    }


@settings(deadline=None, max_examples=60)
@given(populations())
def test_the_three_estimates_are_those_of_every_batch_that_can_be_drawn(body: Answer) -> None:
    got = answer(body)
    assert [batch["method"] for batch in got["batches"]] == ["exact"] * 4
    for batch in got["batches"]:
        for name, (mean, variance) in enumerated(body, batch["batch"]).items():
            estimate = batch["estimates"][name]
            assert estimate["expectation"] == pytest.approx(float(mean), rel=1e-12, abs=1e-12)
            assert estimate["variance"] == pytest.approx(float(variance), rel=1e-10, abs=1e-12)
            assert estimate["bias"] == pytest.approx(float(mean) - got["target"], abs=1e-12)
            assert estimate["rmse"] ** 2 == pytest.approx(estimate["bias"] ** 2 + estimate["variance"], rel=1e-12)


@settings(deadline=None, max_examples=60)
@given(populations())
def test_the_objectives_are_the_means_over_sequences_and_over_tokens(body: Answer) -> None:
    got = answer(body)
    sequences = [i for i, count in enumerate(body["counts"]) for _ in range(count)]
    tokens = [i for i in sequences for _ in range(body["lengths"][i])]
    means = [Fraction(mean) for mean in body["means"]]
    per_sequence = sum(means[i] for i in sequences) / len(sequences)
    per_token = sum(means[i] for i in tokens) / len(tokens)
    assert got["objectives"] == {"per_sequence": float(per_sequence), "per_token": float(per_token)}
    assert got["difference"] == float(per_token - per_sequence)
    assert got["target"] == got["objectives"][body["objective"]]
    assert got["mean_length"] == pytest.approx(len(tokens) / len(sequences), rel=1e-15)


@settings(deadline=None, max_examples=40)
@given(populations())
def test_one_sequence_is_its_own_mean_and_equal_lengths_make_all_estimates_one(body: Answer) -> None:
    single = answer(body)["batches"][0]["estimates"]
    assert single["over_actual_count"] == single["mean_of_means"]
    level = answer(body | {"lengths": [5] * len(body["lengths"])})
    for batch in level["batches"]:
        for name in ("over_actual_count", "over_expected_count"):
            for field in ("expectation", "variance"):
                right = batch["estimates"]["mean_of_means"][field]
                assert batch["estimates"][name][field] == pytest.approx(right, rel=1e-12, abs=1e-13)


# --- simulation: real tokens with a common part in each sequence


def test_a_simulation_of_single_tokens_has_the_same_moments() -> None:
    body = {
        "lengths": [2, 5, 11],
        "counts": [5, 3, 2],
        "mean": 1,
        "slope": -0.5,
        "sigma": 2,
        "rho": 0.25,
        "batch_sizes": [6],
    }
    chance = np.random.default_rng(7)
    lengths, shares = np.array(body["lengths"]), np.array([0.5, 0.3, 0.2])
    mean_length = float(shares @ lengths)
    trials, batch = 60_000, 6
    drawn = lengths[chance.choice(3, size=(trials, batch), p=shares)]
    common = math.sqrt(0.25) * chance.standard_normal((trials, batch, 1))
    alone = math.sqrt(0.75) * chance.standard_normal((trials, batch, 11))
    means = 1 - 0.5 * (drawn / mean_length - 1)
    tokens = means[..., None] + 2 * (common + alone)
    present = np.arange(11) < drawn[..., None]
    sums = (tokens * present).sum(axis=2)
    seen = {
        "mean_of_means": (sums / drawn).mean(axis=1),
        "over_actual_count": sums.sum(axis=1) / drawn.sum(axis=1),
        "over_expected_count": sums.sum(axis=1) / (batch * mean_length),
    }
    estimates = answer(body)["batches"][0]["estimates"]
    for name, values in seen.items():
        error = float(values.std()) / math.sqrt(trials)
        assert abs(float(values.mean()) - estimates[name]["expectation"]) < 4.5 * error
        assert float(values.var()) == pytest.approx(estimates[name]["variance"], rel=4.5 * math.sqrt(2 / trials))


# --- laws


def test_noise_falls_as_one_over_the_batch_and_equal_tokens_buy_equal_noise() -> None:
    batches = view()["batches"]
    for one, other in pairwise(batches):
        growth = other["batch"] / one["batch"]
        for name in ("mean_of_means", "over_expected_count"):
            first, second = one["estimates"][name], other["estimates"][name]
            assert first["variance"] / second["variance"] == pytest.approx(growth, rel=1e-12)
            assert first["sd_over_budget"] == pytest.approx(second["sd_over_budget"], rel=1e-12)
        assert other["tokens_mean"] / one["tokens_mean"] == pytest.approx(growth, rel=1e-12)
        assert one["updates"] * one["tokens_mean"] == pytest.approx(1_000_000, rel=1e-12)


def test_the_ratio_moves_from_the_one_objective_to_the_other() -> None:
    got = view(batch_sizes="1,4,16,64,256,4096", objective="per_token")
    off = [batch["estimates"]["over_actual_count"]["bias"] for batch in got["batches"]]
    assert off[0] == pytest.approx(-got["difference"], rel=1e-12)
    assert all(abs(later) < abs(earlier) for earlier, later in pairwise(off))
    assert off[-2] / off[-1] == pytest.approx(16, rel=0.02)  # the bias falls as 1/B
    kept = view(batch_sizes="1,4096")["batches"][1]["estimates"]["over_actual_count"]["bias"]
    assert kept == pytest.approx(got["difference"], rel=1e-3)  # beside the per-sequence objective it stays


def test_first_order_nears_the_exact_moments_as_the_batch_grows() -> None:
    fields = {"lengths": "16,64,256", "counts": "6,3,1", "slope": "-0.2"}
    exact = view(**fields, batch_sizes="512")["batches"][0]
    rough = view(**fields, batch_sizes="512,1000000")["batches"]
    assert [exact["method"], rough[0]["method"]] == ["exact", "first_order"]
    for field in ("expectation", "variance"):
        got, near = (batch["estimates"]["over_actual_count"][field] for batch in (exact, rough[0]))
        assert near == pytest.approx(got, rel=0.02)


def test_correlated_tokens_are_worth_fewer() -> None:
    lengths = {row["length"]: row for row in view(rho="1", slope="0")["lengths"]}
    assert all(row["effective_tokens"] == 1 for row in lengths.values())
    free = {row["length"]: row for row in view(rho="0", slope="0")["lengths"]}
    assert all(row["effective_tokens"] == length for length, row in free.items())
    assert view(slope="0")["difference"] == 0


def test_the_noise_scale_is_the_batch_at_which_noise_equals_signal() -> None:
    scale = view(slope="0", mean="0.5")["noise_scale"]
    variance = view(slope="0", mean="0.5", batch_sizes="1")["batches"][0]["estimates"]["mean_of_means"]["variance"]
    assert variance / scale == pytest.approx(0.25, rel=1e-12)
    silent = view(mean="0", slope="0")
    assert (silent["noise_scale"], silent["noise_scale_tokens"], silent["reason"]) == (None, None, "zero_reference")


@pytest.mark.parametrize(("batch", "base"), [(1, 16), (4, 2), (10, 2), (1_000, 3)])
def test_the_rate_by_the_noise_scale_lowers_a_quadratic_loss_most(batch: int, base: int) -> None:
    """E L after a step of rate η is L - η·g² + H·η²·(g² + Var)/2; H is such that `lr` is best at `base`."""
    got = view(batch_sizes=f"{batch},{base}", lr="0.003", lr_batch=str(base), rho="0.3")
    signal = got["target"] ** 2
    noise = {one["batch"]: one["estimates"]["mean_of_means"]["variance"] for one in got["batches"]}
    curvature = signal / (signal + noise[base]) / 0.003

    def lowered(rate: float) -> float:
        return float(rate * signal - curvature * rate**2 * (signal + noise[batch]) / 2)

    rates = got["batches"][0]["rates"]
    best = rates["noise_scale"]
    assert max((lowered(best * k / 100), k) for k in range(1, 300))[1] == 100
    assert min(rates["linear"], 0.003) <= best <= max(rates["linear"], 0.003)
    assert got["batches"][1]["rates"] == pytest.approx(dict.fromkeys(rates, 0.003), rel=1e-12)


def test_the_square_root_rule_keeps_the_variance_of_a_step_and_the_linear_one_the_way_of_single_updates() -> None:
    got = view(batch_sizes="1,4,16,64", lr="0.001", lr_batch="4")
    steps = [one["rates"]["square_root"] ** 2 * one["estimates"]["mean_of_means"]["variance"] for one in got["batches"]]
    assert steps == pytest.approx([steps[0]] * 4, rel=1e-12)
    ways = [one["rates"]["linear"] * one["updates"] for one in got["batches"]]
    assert ways == pytest.approx([ways[0]] * 4, rel=1e-12)


def test_without_noise_the_rate_stays_and_without_a_signal_there_is_no_rule() -> None:
    quiet = view(sigma="0", slope="0", lr="0.5", batch_sizes="1,64")
    assert [one["rates"]["noise_scale"] for one in quiet["batches"]] == [0.5, 0.5]
    silent = view(mean="0", slope="0", batch_sizes="1,64")
    assert [one["rates"]["noise_scale"] for one in silent["batches"]] == [None, None]
    assert silent["reason"] == "zero_reference"


def test_the_default_state_shows_two_objectives_and_a_bias_that_overtakes_the_noise() -> None:
    got = view()
    assert got["objectives"]["per_sequence"] == 1
    assert got["objectives"]["per_token"] == pytest.approx(0.663668, abs=1e-6)
    first, *_, last = (batch["estimates"] for batch in got["batches"])
    assert abs(first["over_actual_count"]["bias"]) < first["mean_of_means"]["sd"]
    assert abs(last["over_actual_count"]["bias"]) > 3 * last["mean_of_means"]["sd"]


# --- refusals


REFUSED_FIELDS = {
    "lengths": ["", "16,0,4"],
    "counts": [{"lengths": "16,64"}, "6,3,-1", "0,0,0", "a"],
    "means": ["1,2"],
    "rho": ["1.5", "-0.1"],
    "sigma": ["-1", "1e200"],
    "mean": [""],
    "batch_sizes": ["0", ",".join(map(str, range(1, 66)))],
    "tokens": ["0"],
    "lr": ["0"],
    "lr_batch": ["0"],
    "objective": ["per_batch"],
}


def test_post_and_get_have_the_same_fields_and_answers() -> None:
    assert set(Inputs.model_fields) == set(Query.model_fields)
    body = Inputs.model_validate({"lengths": [16, 64, 256], "counts": [6, 3, 1]})
    assert compute(body).model_dump_json() == asked.panel().model_dump_json()
    assert answer({"lengths": [3, 5]}) == answer({"lengths": [3, 5], "counts": [2, 2]})


def test_the_largest_population_is_answered() -> None:
    lengths = list(range(1, 4097))
    got = answer({"lengths": lengths, "counts": None, "batch_sizes": [1, 64, 10**6]})
    assert len(got["lengths"]) == 4096
    assert {batch["method"] for batch in got["batches"]} == {"first_order"}


# --- the panel in words

SHOWN = [
    "",
    "objective=per_token",
    "slope=0",
    "mean=0&slope=0",
    "sigma=0",
    "lengths=5&counts=",
    "batch_sizes=7",
    "batch_sizes=1000000",
    "means=1,2,3",
    "rho=2",
    "sigma=0&slope=0&mean=0",
]


# --- the program that its page offers


def any_body(source: random.Random) -> Body:
    lengths = [60, *source.sample(range(1, 58), source.randint(1, 5))]
    return {
        "lengths": lengths,
        "counts": source.choice([None, [source.randint(1, 5) for _ in lengths]]),
        "means": source.choice([None, quarters(source, len(lengths))]),
        "rho": source.choice([0, "0.3", 1]),
        "batch_sizes": source.choice([[1, 2, 3, 50], [2, 5_000], [2, 1_000_000]]),
        "sigma": source.choice([0, 4]),
        "objective": source.choice(["per_sequence", "per_token"]),
        "lr": source.choice(["0.001", 2]),
        "lr_batch": source.choice([1, 48]),
    }


PROGRAM = Program(
    prints=[
        "objectives.per_token",
        "noise_scale",
        "batches.1.estimates.over_actual_count.expectation",
        "batches.1.rates.noise_scale",
    ],
    planted=("[16, 64, 256]", "[16, 65, 256]"),
    bodies=any_body,
)
