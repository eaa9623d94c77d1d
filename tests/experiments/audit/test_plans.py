"""How samples are dealt out to ranks and microbatches."""

import pytest

from samestep.experiments.audit.running import plans


def flat(plan: plans.Plan) -> list[int]:
    return [sample for rank in plan.cells for cell in rank for sample in cell]


@pytest.mark.parametrize("name", ["ragged", "contiguous", "empty-rank", "tail"])
@pytest.mark.parametrize(("ranks", "microbatches"), [(2, 3), (3, 2), (4, 1)])
def test_every_sample_is_in_exactly_one_cell_and_all_ranks_have_as_many_microbatches(
    name: str, ranks: int, microbatches: int
) -> None:
    (plan,) = plans.named(name, 31, ranks, microbatches)
    assert sorted(flat(plan)) == list(range(31))
    assert [len(rank) for rank in plan.cells] == [microbatches] * ranks


@pytest.mark.parametrize("samples", [21, 22, 26, 27, 100])
def test_ragged_counts_are_all_different_none_is_zero_and_ranks_differ_in_their_sums(samples: int) -> None:
    (plan,) = plans.named("ragged", samples, 2, 3)
    counts = [count for rank in plan.counts for count in rank]
    assert len(set(counts)) == 6
    assert min(counts) > 0
    assert sum(plan.counts[0]) != sum(plan.counts[1])


def test_ragged_deals_the_same_way_each_time() -> None:
    assert plans.named("ragged", 29, 2, 3) == plans.named("ragged", 29, 2, 3)


def test_ragged_with_one_sample_too_few_names_the_number_that_is_needed() -> None:
    with pytest.raises(plans.TooFewSamplesError, match="at least 21 samples, data\\(\\) gives 20"):
        plans.named("ragged", 20, 2, 3)


def test_contiguous_counts_differ_by_at_most_one_and_would_hide_a_wrong_weighting() -> None:
    (plan,) = plans.named("contiguous", 12, 2, 3)
    assert plan.counts == [[2, 2, 2], [2, 2, 2]]


def test_the_last_rank_of_empty_rank_has_nothing_and_no_other_has() -> None:
    (plan,) = plans.named("empty-rank", 12, 3, 2)
    assert plan.counts == [[3, 3], [3, 3], [0, 0]]


def test_an_empty_rank_needs_a_second_rank() -> None:
    with pytest.raises(plans.TooFewSamplesError, match="2 processes"):
        plans.named("empty-rank", 12, 1, 2)


@pytest.mark.parametrize("samples", [11, 12, 13, 23, 24, 25, 60])
def test_the_last_microbatch_of_tail_is_shorter_than_every_other(samples: int) -> None:
    (plan,) = plans.named("tail", samples, 2, 3)
    *others, last = [count for rank in plan.counts for count in rank]
    assert 0 < last < min(others)


def test_all_is_every_plan_that_fits() -> None:
    assert [plan.name for plan in plans.named("all", 31, 2, 3)] == ["ragged", "contiguous", "empty-rank", "tail"]
    assert [plan.name for plan in plans.named("all", 31, 1, 3)] == ["ragged", "contiguous", "tail"]


@pytest.mark.parametrize(("samples", "ranks", "microbatches"), [(20, 2, 3), (7, 2, 3), (24, 4, 3)])
def test_with_few_samples_the_raggedest_plan_that_fits_is_dealt_and_says_so(
    samples: int, ranks: int, microbatches: int
) -> None:
    (plan,) = plans.fitting("ragged", samples, ranks, microbatches)
    counts = [count for rank in plan.counts for count in rank]
    assert sorted(flat(plan)) == list(range(samples))
    assert min(counts) == 1
    assert len(set(counts)) > 1
    cells = ranks * microbatches
    assert plan.wanted == cells * (cells + 1) // 2


def test_with_enough_samples_it_is_the_ragged_plan() -> None:
    assert plans.fitting("ragged", 21, 2, 3) == plans.named("ragged", 21, 2, 3)


def test_fewer_samples_than_cells_fit_no_plan() -> None:
    with pytest.raises(plans.TooFewSamplesError, match="at least 6 samples"):
        plans.fitting("ragged", 5, 2, 3)
