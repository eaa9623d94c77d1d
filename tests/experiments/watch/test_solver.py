"""Sketches, the fit and the rules by themselves, on numbers whose answer is known."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from samestep.experiments.taps.sketches import ROW, WIDTH, sketch, sketch_of_shard
from samestep.experiments.watch.joined import fitting
from samestep.experiments.watch.joined.fitting import Fit
from samestep.experiments.watch.telling import patterns

NUMBERS = np.random.default_rng(0)
Columns = np.ndarray


def test_a_sketch_is_linear() -> None:
    one, other = torch.randn(3, 5000, dtype=torch.float64), torch.randn(3, 5000, dtype=torch.float64)
    assert torch.allclose(sketch(2 * one - 3 * other), 2 * sketch(one) - 3 * sketch(other), atol=1e-10)


@pytest.mark.parametrize("cut", [1, ROW - 1, ROW, 2 * ROW + 5, 12_344])
def test_sketches_of_shards_add_up_to_that_of_the_whole(cut: int) -> None:
    whole = torch.randn(12_345, dtype=torch.float64)
    parts = sketch(whole[:cut]) + sketch(whole[cut:], cut)
    assert torch.allclose(parts, sketch(whole), atol=1e-10)


def test_shards_of_a_later_axis_add_up_too() -> None:
    whole = torch.randn(40, 300, dtype=torch.float64)
    parts = sketch_of_shard(whole[:, :120], (40, 300), (0, 0)) + sketch_of_shard(whole[:, 120:], (40, 300), (0, 120))
    assert torch.allclose(parts, sketch(whole), atol=1e-10)


def test_sums_over_any_axis_that_vanish_do_not_make_the_sketch_vanish() -> None:
    """As in the gradient of a language model's head, whose sum over the vocabulary is zero."""
    head = torch.randn(4096, 128, dtype=torch.float64)
    head -= head.mean(0)
    assert float(sketch(head).norm() / head.norm()) > 0.5


def test_a_float32_sketch_of_ten_million_numbers_is_good_to_seven_digits() -> None:
    numbers = torch.randn(10_000_000)
    exact = sketch(numbers.double())
    assert float((sketch(numbers) - exact).norm() / exact.norm()) < 5e-7


def test_sketching_draws_nothing_from_the_global_generator() -> None:
    state = torch.get_rng_state()
    sketch(torch.ones(9 * ROW * 4096))
    assert torch.equal(torch.get_rng_state(), state)


def test_an_empty_shard_has_a_sketch_of_zeros() -> None:
    assert sketch(torch.empty(0)).tolist() == [0.0] * WIDTH


# ---- the fit ----------------------------------------------------------------------------------------------------


def fitted(factors: list[float], tensors: int = 6, change: Callable[[Columns, Columns], None] | None = None) -> Fit:
    """Of a goal that is made with these factors; `change(columns, goal)` before it is fitted."""
    columns = NUMBERS.standard_normal((tensors, WIDTH, len(factors)))
    goal = columns @ np.array(factors)
    if change:
        change(columns, goal)
    return fitting.fit(columns, goal, tuple(f"t{i}" for i in range(tensors)), low_precision=False)


def test_equal_factors_are_one_and_unequal_ones_are_free() -> None:
    assert fitted([0.5] * 6).kind == "one"
    free = fitted([0.5, 0.5, 0.25, 0.5])
    assert free.kind == "free"
    assert free.factors == pytest.approx([0.5, 0.5, 0.25, 0.5], abs=1e-12)


def test_a_small_backward_with_a_factor_of_its_own_is_not_hidden_by_large_ones() -> None:
    def shrink(columns: Columns, goal: Columns) -> None:
        columns[:, :, 1] *= 1e-7
        goal[:] = columns @ np.array([0.5, 0.0, 0.5])

    assert fitted([0.5, 0.0, 0.5], change=shrink).factors[1] == pytest.approx(0.0, abs=1e-6)


def test_a_tensor_that_follows_another_rule_is_named_and_the_rest_is_fitted() -> None:
    def other(columns: Columns, goal: Columns) -> None:
        goal[2] = columns[2] @ np.array([1.0, 0.0])

    found = fitted([0.5, 0.5], change=other)
    assert (found.kind, found.one_factor) == ("one", pytest.approx(0.5))
    assert [(each.name, each.factors) for each in found.off] == [("t2", pytest.approx((1.0, 0.0)))]


def test_what_is_no_sum_of_the_columns_has_a_residual() -> None:
    def noise(columns: Columns, goal: Columns) -> None:
        goal += NUMBERS.standard_normal(goal.shape)

    assert fitted([0.5, 0.5], change=noise).residual > 0.1


def test_two_equal_columns_are_not_told_apart() -> None:
    def copy(columns: Columns, goal: Columns) -> None:
        columns[:, :, 1] = columns[:, :, 0]
        goal[:] = columns @ np.array([0.75, 0.25, 0.5])

    found = fitted([0.75, 0.25, 0.5], change=copy)
    assert found.determined.tolist() == [False, False, True]
    assert found.residual < 1e-12


# ---- the rules --------------------------------------------------------------------------------------------------

COUNTS = [[14.0, 2.0, 10.0], [4.0, 6.0, 22.0]]


def weights(rule: Callable[[int, int], float]) -> list[list[float]]:
    return [[rule(r, k) for k in range(3)] for r in range(2)]


@pytest.mark.parametrize(
    ("code", "factor", "rule"),
    [
        ("global", 1.0, lambda r, k: 1 / 58),
        ("global", 1 / 3, lambda r, k: 1 / 174),
        ("replica_equal", 1.0, lambda r, k: 1 / (2 * sum(COUNTS[r]))),
        ("microbatch_equal", 1.0, lambda r, k: 1 / (6 * COUNTS[r][k])),
        ("microbatch_equal", 2.0, lambda r, k: 1 / (3 * COUNTS[r][k])),
        ("microbatch_equal", 1.0, lambda r, k: sum(COUNTS[r]) / (58 * 3 * COUNTS[r][k])),
        ("microbatch_equal", 1.0, lambda r, k: 1 / (3 * (COUNTS[0][k] + COUNTS[1][k]))),
        ("reduced_again", 1.0, lambda r, k: 2 ** (2 - k) / 58),
    ],
)
def test_a_rule_is_recognised_with_its_factor(code: str, factor: float, rule: Callable[[int, int], float]) -> None:
    found = patterns.find(weights(rule), COUNTS, 1e-6)
    assert found is not None
    assert (found.code, found.factor) == (code, pytest.approx(factor))


def test_another_weighting_has_no_rule() -> None:
    assert patterns.find(weights(lambda r, k: 1 + r + 5 * k), COUNTS, 1e-6) is None


def test_empty_cells_have_no_say() -> None:
    counts = [[0.0, 5.0], [4.0, 3.0]]
    mean = [[0.0, 1 / (3 * 5)], [1 / (3 * 4), 1 / (3 * 3)]]
    found = patterns.find(mean, counts, 1e-6)
    assert found is not None
    assert (found.code, found.factor) == ("microbatch_equal", pytest.approx(1.0))


def test_where_factors_coincide_every_name_is_given() -> None:
    assert patterns.named("global", 0.5, 2, 2, 58, 1e-6, None).names == ("1/P", "1/K")
    assert patterns.named("global", 0.5, 2, 3, 58, 1e-6, None).names == ("1/P",)
    assert patterns.named("global", 0.123, 2, 3, 58, 1e-6, None).names == ()
