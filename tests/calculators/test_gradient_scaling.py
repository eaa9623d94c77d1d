"""Facts about the factors M, D and M·D; the independent methods are autograd on a real split and sums of fractions."""

import random
from fractions import Fraction
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st

from samestep.app.calculators.gradient_scaling import Inputs, Query, compute
from tests.kit import Asked, Body, Program

asked = Asked("gradient_scaling")
view, view_refusal = asked.view, asked.view_refusal

REDUCTIONS = list(product(["mean", "sum"], ["sum", "mean"]))


def test_the_defaults_show_that_the_sum_over_both_loops_is_8_times_the_gradient() -> None:
    got = view()
    assert (got["accumulated_multiple"], got["reduced_multiple"], got["final_multiple"]) == ("4", "8", "8")
    assert got["required_factor"] == "1/8"
    assert got["required_factor_value"] == 0.125
    assert (got["samples_per_micro_batch"], got["samples_per_replica"]) == (8, 32)
    assert got["matches_reference"] is False


@pytest.mark.parametrize(
    ("fields", "accumulated", "reduced", "required"),
    [
        ({"replicas": 1}, "4", "4", "1/4"),  # accumulation alone: M
        ({"micro_batches": 1}, "1", "2", "1/2"),  # data parallel alone: D
        ({}, "4", "8", "1/8"),  # both: M·D
        ({"all_reduce": "mean"}, "4", "4", "1/4"),  # the mean takes care of D
        ({"loss_reduction": "sum"}, "32", "64", "1/64"),  # N/D, then N
        ({"loss_reduction": "sum", "all_reduce": "mean"}, "32", "32", "1/32"),  # N/D twice
        ({"micro_batches": 1, "replicas": 1}, "1", "1", "1"),
    ],
)
def test_each_stage_has_the_factor_of_the_sources(
    fields: dict[str, Any], accumulated: str, reduced: str, required: str
) -> None:
    got = view(**fields)
    assert (got["accumulated_multiple"], got["reduced_multiple"]) == (accumulated, reduced)
    assert got["required_factor"] == required
    assert got["final_multiple"] == reduced


@pytest.mark.parametrize(("loss_reduction", "all_reduce"), REDUCTIONS)
@pytest.mark.parametrize("scale", ["loss", "gradient"])
def test_both_ways_of_scaling_are_right_for_both_reductions(loss_reduction: str, all_reduce: str, scale: str) -> None:
    fields = {"loss_reduction": loss_reduction, "all_reduce": all_reduce}
    raw, got = view(**fields), view(**fields, scale=scale)
    assert got["final_multiple"] == "1"
    assert got["matches_reference"] is True
    assert raw["matches_reference"] is False
    for field in ("accumulated_multiple", "reduced_multiple", "required_factor"):
        assert got[field] == raw[field]  # of the raw losses, whatever the scaling


def test_the_two_ways_differ_in_where_the_factor_enters() -> None:
    loss, gradient = (
        {stage["name"]: stage["multiple"] for stage in view(scale=scale)["stages"]} for scale in ("loss", "gradient")
    )
    assert loss == {"local": "1/8", "accumulated": "1/2", "reduced": "1", "final": "1"}
    assert gradient == {"local": "1", "accumulated": "4", "reduced": "8", "final": "1"}


def test_post_and_get_have_the_same_fields_and_answers() -> None:
    assert set(Inputs.model_fields) == set(Query.model_fields)
    assert compute(Inputs()).model_dump_json() == asked.panel().model_dump_json()


REFUSED_FIELDS = {
    "batch": [
        (65, "not_divisible"),
        ({"batch": 7, "micro_batches": 4, "replicas": 2}, "not_divisible"),
        (0, "greater_than_equal"),
        ("", "blank"),
        ("64.5", "int_from_float"),
        (10**9 + 1, "less_than_equal"),
    ],
    "micro_batches": [(-4, "greater_than_equal"), (True, "number_type")],
    "replicas": [("inf", "finite_number"), (4097, "less_than_equal")],
}


def test_an_uneven_split_is_sent_to_the_ledger() -> None:
    error = view_refusal(batch=64, micro_batches=3, replicas=4)
    for text in (error.en, error.zh):
        assert "M·D = 3·4 = 12" in text
        assert "replica_ledger" in text


def test_whole_numbers_may_be_written_as_text() -> None:
    assert view(batch="64", micro_batches="4.0", replicas=" 2 ") == view()


def test_the_largest_split_stays_exact() -> None:
    got = view(batch=10**9, micro_batches=10**9, replicas=1, loss_reduction="sum")
    assert (got["reduced_multiple"], got["required_factor"]) == ("1000000000", "1/1000000000")


# --- properties

SPLITS = st.fixed_dictionaries(
    {
        "n": st.integers(1, 5),
        "micro_batches": st.integers(1, 5),
        "replicas": st.integers(1, 4),
        "loss_reduction": st.sampled_from(["mean", "sum"]),
        "all_reduce": st.sampled_from(["sum", "mean"]),
        "scale": st.sampled_from(["none", "loss", "gradient"]),
    }
)


def fields_of(split: dict[str, Any]) -> dict[str, Any]:
    fields = {name: value for name, value in split.items() if name != "n"}
    return fields | {"batch": split["n"] * split["micro_batches"] * split["replicas"]}


@given(SPLITS, st.data())
def test_the_factors_are_those_of_exact_gradients_summed_sample_by_sample(split: dict[str, Any], data: Any) -> None:
    fields = fields_of(split)
    gradients = data.draw(st.lists(st.integers(1, 99), min_size=fields["batch"], max_size=fields["batch"]))
    cells = [gradients[i : i + split["n"]] for i in range(0, len(gradients), split["n"])]
    mean_loss = split["loss_reduction"] == "mean"
    local = [Fraction(sum(cell), len(cell) if mean_loss else 1) for cell in cells]
    m = split["micro_batches"]
    accumulated = [sum(local[i : i + m], Fraction(0)) for i in range(0, len(local), m)]
    reduced = sum(accumulated, Fraction(0)) / (len(accumulated) if split["all_reduce"] == "mean" else 1)
    reference = Fraction(sum(gradients), len(gradients))
    got = view(**fields)
    assert Fraction(got["reduced_multiple"]) == reduced / reference
    assert Fraction(got["required_factor"]) == reference / reduced
    share = len(gradients) // split["replicas"]
    for k, total in enumerate(accumulated):
        own_mean = Fraction(sum(gradients[k * share : (k + 1) * share]), share)
        assert Fraction(got["accumulated_multiple"]) == total / own_mean
    expected = reduced / reference if split["scale"] == "none" else Fraction(1)
    assert Fraction(got["final_multiple"]) == expected


@settings(deadline=None, max_examples=50)
@given(SPLITS, st.integers(0, 2**32))
def test_autograd_on_the_real_split_gives_the_same_factors(split: dict[str, Any], seed: int) -> None:
    fields = fields_of(split)
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.rand(fields["batch"], 3, dtype=torch.float64, generator=generator) + 0.5
    targets = torch.rand(fields["batch"], dtype=torch.float64, generator=generator) - 5  # no gradient vanishes
    start = torch.rand(3, dtype=torch.float64, generator=generator)
    got = view(**fields)
    factor = float(Fraction(got["required_factor"]))

    def gradient(batches: list[torch.Tensor], reduction: str, loss_factor: float = 1.0) -> torch.Tensor:
        weights = start.clone().requires_grad_()
        for index in batches:
            loss = torch.nn.functional.mse_loss(inputs[index] @ weights, targets[index], reduction=reduction)
            torch.autograd.backward(loss * loss_factor)  # accumulates
        assert weights.grad is not None
        return weights.grad

    shares = torch.arange(fields["batch"]).chunk(split["replicas"])
    reference = gradient([torch.arange(fields["batch"])], "mean")
    per_replica = [
        gradient(
            list(share.chunk(split["micro_batches"])),
            split["loss_reduction"],
            factor if split["scale"] == "loss" else 1.0,
        )
        for share in shares
    ]
    stacked = torch.stack(per_replica)
    reduced = stacked.mean(0) if split["all_reduce"] == "mean" else stacked.sum(0)
    final = reduced * (factor if split["scale"] == "gradient" else 1.0)
    stages = {stage["name"]: stage["multiple_value"] for stage in got["stages"]}
    torch.testing.assert_close(final, got["final_multiple_value"] * reference, rtol=1e-11, atol=0)
    torch.testing.assert_close(reduced, stages["reduced"] * reference, rtol=1e-11, atol=0)
    for share, accumulated in zip(shares, per_replica, strict=True):
        torch.testing.assert_close(accumulated, stages["accumulated"] * gradient([share], "mean"), rtol=1e-11, atol=0)


@given(SPLITS)
def test_the_float_twins_are_the_fractions(split: dict[str, Any]) -> None:
    got = view(**fields_of(split))
    for name in ("accumulated_multiple", "reduced_multiple", "final_multiple", "required_factor"):
        assert got[f"{name}_value"] == float(Fraction(got[name]))
    assert Fraction(got["required_factor"]) * Fraction(got["reduced_multiple"]) == 1
    assert [stage["relative_to"] for stage in got["stages"]] == ["micro_batch_mean", "replica_mean", "g_star", "g_star"]


# --- the program that its page offers


def any_body(source: random.Random) -> Body:
    micro_batches, replicas = source.randint(1, 4), source.randint(1, 5)
    return {
        "batch": micro_batches * replicas * source.randint(1, 6),
        "micro_batches": micro_batches,
        "replicas": replicas,
        "loss_reduction": source.choice(["mean", "sum"]),
        "all_reduce": source.choice(["mean", "sum"]),
        "scale": source.choice(["none", "loss", "gradient"]),
    }


PROGRAM = Program(
    prints=["reduced_multiple_value", "final_multiple_value", "required_factor_value"],
    planted=("64, 4, 2", "64, 2, 2"),
    bodies=any_body,
)
