"""Facts about the sampler's repeats; the independent methods are torch's own DistributedSampler and plain fractions."""

import random
from collections import Counter
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch.utils.data import BatchSampler, DistributedSampler

from samestep.app.calculators.sampler_padding import Inputs, present
from samestep.app.calculators.sampler_padding.distributed_sampler import order
from samestep.app.contract.limits import MAX_EXACT_CELLS, MAX_LISTED_CELLS
from tests.kit import Asked, Body, Program, agrees, cases, changed, quarters

asked = Asked("sampler_padding")
answer, view = asked.answer, asked.view


def dealt_by_torch(body: Body, drop_last: bool) -> list[list[int]]:
    """Torch's deal; the repeats of `last` are put in the places of its own."""
    ranks = []
    for rank in range(body["replicas"]):
        sampler = DistributedSampler(
            range(body["dataset_size"]),  # type: ignore[arg-type]  # anything with a length will do
            body["replicas"],
            rank,
            shuffle=body.get("shuffle", False),
            seed=body.get("seed", 0),
            drop_last=drop_last,
        )
        sampler.set_epoch(body.get("epoch", 0))
        ranks.append(list(sampler))
    if body.get("repeat") == "last" and not drop_last:
        size, replicas = body["dataset_size"], body["replicas"]
        rounds = [i for dealt in zip(*ranks, strict=True) for i in dealt]
        ranks = [[rounds[min(place, size - 1)] for place in range(r, len(rounds), replicas)] for r in range(replicas)]
    return ranks


@pytest.mark.parametrize("case", cases("sampler").values(), ids=lambda case: case["id"])
def test_the_worked_case_is_met_at_its_tolerance(case: Body) -> None:
    agrees(answer(case["inputs"]), case["expected"], **case["tolerance"])


@st.composite
def bodies(draw: st.DrawFn) -> Body:
    size = draw(st.integers(1, 40))
    numbers = st.one_of(st.integers(-9, 9), st.sampled_from(["1/3", "0.1", "-2.5"]))
    return {
        "dataset_size": size,
        "replicas": draw(st.integers(1, 90 if size < 5 else 12)),
        "shuffle": draw(st.booleans()),
        "seed": draw(st.integers(0, 2**40)),
        "epoch": draw(st.integers(0, 5)),
        "drop_last": draw(st.booleans()),
        "repeat": draw(st.sampled_from(["start", "last"])),
        "per_sample_grad": draw(st.lists(numbers, min_size=size, max_size=size)),
    }


@given(bodies())
@settings(max_examples=80, deadline=None)
def test_every_rank_gets_the_very_indices_that_torch_deals(body: Body) -> None:
    got = answer(body)
    padded, cut = dealt_by_torch(body, drop_last=False), dealt_by_torch(body, drop_last=True)
    assert got["repeat"]["indices_per_rank"] == padded
    assert got["drop_last"]["indices_per_rank"] == cut
    chosen = cut if body["drop_last"] else padded
    assert got["indices_per_rank"] == chosen
    times = Counter(index for rank in chosen for index in rank)
    assert got["consumed"] == times.total()
    assert got["distinct"] == len(times)
    assert got["duplicated"] == sorted(index for index, count in times.items() if count > 1)
    assert got["most_often"] == max(times.values(), default=0)
    assert got["drop_last"]["dropped"] == sorted(set(range(body["dataset_size"])) - {i for rank in cut for i in rank})


@given(bodies())
@settings(max_examples=80, deadline=None)
def test_means_and_errors_are_those_of_exact_fractions(body: Body) -> None:
    got = answer(body)
    values = [Fraction(value) for value in body["per_sample_grad"]]
    padded, cut = ([i for rank in dealt_by_torch(body, drop_last=drop) for i in rank] for drop in (False, True))
    consumed = cut if body["drop_last"] else padded
    groups = {
        "dataset": range(len(values)),
        "distinct": sorted(set(consumed)),
        "consumed": consumed,
        "drop_last": cut,
        "dropped": sorted(set(range(len(values))) - set(cut)),
        "repeats": (Counter(padded) - Counter(range(len(values)))).elements(),
    }
    whole = sum(values) / len(values)
    for name, group in groups.items():
        chosen = [values[i] for i in group]
        mean = got["means"][name]
        assert mean["count"] == len(chosen)
        if chosen:
            expected = sum(chosen, Fraction(0)) / len(chosen)
            assert Fraction(mean["exact"]) == expected
            assert Fraction(mean["error_exact"]) == expected - whole
            assert (mean["value"], mean["error"]) == (float(expected), float(expected - whole))
        else:
            assert (mean["value"], mean["defined"], mean["reason"]) == (None, False, "zero_count")


@given(bodies())
@settings(max_examples=60, deadline=None)
def test_the_error_is_the_share_of_the_repeats_times_how_far_they_are_off(body: Body) -> None:
    got = answer(body)
    size, padded, kept = body["dataset_size"], got["repeat"], got["drop_last"]
    if padded["repeats"]:
        share = Fraction(padded["consumed"] - size, padded["consumed"])
        assert Fraction(padded["mean"]["error_exact"]) == share * Fraction(got["means"]["repeats"]["error_exact"])
    else:
        assert padded["mean"]["error_exact"] == "0"
    if kept["consumed"] and kept["dropped_count"]:
        share = Fraction(size - kept["consumed"], kept["consumed"])
        assert Fraction(kept["mean"]["error_exact"]) == -share * Fraction(got["means"]["dropped"]["error_exact"])


@pytest.mark.parametrize("seed", [0, 1, 12_345, 2**31, 2**32 - 1, 2**32 + 5, 2**53 - 1])
@pytest.mark.parametrize("size", [1, 2, 3, 624, 625, 20_000])
def test_the_order_is_torchs_permutation_bit_by_bit(size: int, seed: int) -> None:
    generator = torch.Generator()
    generator.manual_seed(seed)
    assert order(size, seed).tolist() == torch.randperm(size, generator=generator).tolist()


def test_numpys_own_permutation_is_another_one() -> None:
    import numpy as np

    assert order(100, 0).tolist() != np.random.RandomState(0).permutation(100).tolist()


def test_shuffling_changes_who_is_repeated_and_not_how_many() -> None:
    epochs = [answer({"dataset_size": 10, "replicas": 3, "shuffle": True, "epoch": epoch}) for epoch in range(3)]
    assert {got["repeats"] for got in epochs} == {2}
    assert len({tuple(got["duplicated"]) for got in epochs}) > 1


def test_seed_and_epoch_enter_as_their_sum_alone() -> None:
    one = answer({"dataset_size": 10, "replicas": 3, "shuffle": True, "seed": 4, "epoch": 1})
    other = answer({"dataset_size": 10, "replicas": 3, "shuffle": True, "seed": 2, "epoch": 3})
    assert one == other
    assert one != answer({"dataset_size": 10, "replicas": 3, "shuffle": True, "seed": 4, "epoch": 2})


def test_fewer_samples_than_replicas_are_repeated_more_than_once() -> None:
    got = answer({"dataset_size": 2, "replicas": 5})
    assert got["indices_per_rank"] == [[0], [1], [0], [1], [0]]
    assert (got["duplicated"], got["most_often"], got["repeats"]) == ([0, 1], 3, 3)


def test_drop_last_with_fewer_samples_than_replicas_leaves_no_mean() -> None:
    got = answer({"dataset_size": 2, "replicas": 5, "drop_last": True, "per_sample_grad": [3, 4]})
    assert got["indices_per_rank"] == [[]] * 5
    assert got["dropped"] == [0, 1]
    assert got["mean_over_consumed"] is None
    assert got["means"]["consumed"]["reason"] == "zero_count"
    assert got["mean_over_dataset"] == 3.5


def test_an_even_division_has_no_error_either_way() -> None:
    got = answer({"dataset_size": 6, "replicas": 3, "per_sample_grad": [5, -1, 2, 8, 0, 1]})
    assert got["indices_per_rank"] == got["drop_last"]["indices_per_rank"]
    assert (got["duplicated"], got["dropped"]) == ([], [])
    assert {got["means"][name]["error"] for name in ("distinct", "consumed", "drop_last")} == {0.0}
    assert answer({"dataset_size": 6, "replicas": 4, "per_sample_grad": [5, -1, 2, 8, 0, 1]})["means"]["consumed"][
        "error"
    ]


def test_without_gradients_there_is_the_deal_and_no_mean() -> None:
    got = answer({"dataset_size": 10, "replicas": 3})
    assert got["consumed"] == 12
    assert got["means"] is None
    assert got["mean_over_consumed"] is None


def test_a_mean_of_microbatch_means_weighs_the_short_last_one_more() -> None:
    body = {"dataset_size": 7, "replicas": 1, "microbatch": 3, "per_sample_grad": [0, 0, 0, 0, 0, 0, 9]}
    got = answer(body)
    assert got["microbatches"] == [list(BatchSampler(range(7), 3, drop_last=False))]
    assert got["means"]["microbatch_means"]["value"] == pytest.approx(9 / 3)
    assert got["means"]["consumed"]["value"] == pytest.approx(9 / 7)


def test_other_grad_stands_for_all_samples_beyond_the_list() -> None:
    short = answer({"dataset_size": 10, "replicas": 3, "per_sample_grad": [10, -2], "other_grad": 1})
    assert short == answer({"dataset_size": 10, "replicas": 3, "per_sample_grad": [10, -2, *[1] * 8]})


def test_the_panels_defaults_show_the_worked_case() -> None:
    got = view()
    assert (got["mean_over_distinct"], got["mean_over_consumed"]) == (1.6, 2.0)
    assert [[dealt["index"] for dealt in row] for row in got["rounds"]] == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 0, 1]]
    assert [dealt["repeated"] for dealt in got["rounds"][-1]] == [False, True, True]


def test_numbers_of_the_panel_are_as_exact_as_typed() -> None:
    got = view(dataset_size="3", per_sample_grad="1/3,0.1", other_grad="2")
    assert Fraction(got["means"]["dataset"]["exact"]) == (Fraction(1, 3) + Fraction(1, 10) + 2) / 3


def test_a_large_data_set_leaves_out_lists_and_fractions_and_keeps_the_means() -> None:
    size = MAX_LISTED_CELLS + 1
    result = present(Inputs(dataset_size=size, replicas=64, shuffle=True, per_sample_grad=[1.5] * size))
    assert size > MAX_EXACT_CELLS
    assert result.indices_per_rank is None
    assert result.mean_over_consumed == 1.5
    assert result.means is not None
    assert result.means["consumed"].exact is None
    assert (len(result.rounds), len(result.rounds[0])) == (12, 8)


REFUSED_BODIES = changed(
    {"dataset_size": 10, "replicas": 3},
    [
        ({"dataset_size": 0}, "dataset_size"),
        ({"dataset_size": "10.5"}, "dataset_size"),
        ({"replicas": 0}, "replicas"),
        ({"replicas": 4097}, "replicas"),
        ({"shuffle": 1}, "shuffle"),
        ({"repeat": "first"}, "repeat"),
        ({"seed": -1}, "seed"),
        ({"microbatch": 0}, "microbatch"),
        ({"per_sample_grad": [1, 2]}, "per_sample_grad"),
        ({"per_sample_grad": [1] * 11}, "per_sample_grad"),
        ({"per_sample_grad": [1] * 9 + ["x"]}, "per_sample_grad.9"),
        ({"per_sample_grad": [1] * 9 + [True]}, "per_sample_grad.9"),
        ({"per_sample_grad": ["1e308"] * 10}, "per_sample_grad"),
        ({"other_grad": "nan"}, "other_grad"),
        ({"sampler": "x"}, "sampler"),
    ],
)


# --- the program that its page offers


def any_body(source: random.Random) -> Body:
    size = source.randint(1, 20)
    given = source.randint(0, size)
    return {
        "dataset_size": size,
        "replicas": source.randint(1, 7),
        "shuffle": source.random() < 0.5,
        "drop_last": source.random() < 0.5,
        "repeat": source.choice(["start", "last"]),
        "seed": source.randint(0, 99),
        "epoch": source.randint(0, 3),
        "microbatch": source.choice([None, 2]),
        **source.choice([{}, {"per_sample_grad": quarters(source, given), "other_grad": "0.1"}]),
    }


PROGRAM = Program(
    prints=["indices_per_rank", "duplicated", "mean_over_consumed", "means.distinct.value"],
    planted=("[10, -2]", "[10, -3]"),
    bodies=any_body,
)
