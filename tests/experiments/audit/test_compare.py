"""What counts as a difference."""

from collections import Counter
from math import inf, isinf, nan
from pathlib import Path

import numpy as np
import pytest

from samestep.experiments.audit.judging import compare
from samestep.experiments.audit.running.trace import Trace
from samestep.experiments.audit.running.vectors import Vectors


def vectors(place: Path, **tensors: list[float]) -> Vectors:
    return Vectors.write(place, {name: np.array(values) for name, values in tensors.items()})


def test_a_difference_is_judged_by_the_greatest_number_of_its_kind(tmp_path: Path) -> None:
    tiny = vectors(tmp_path / "a.f64", w=[1e-3, 0.0])
    off = vectors(tmp_path / "b.f64", w=[1e-3, 1e-12])
    assert compare.vectors(tiny, off, 2e-10).there
    large = vectors(tmp_path / "c.f64", w=[1.0, 0.0])
    same_off = vectors(tmp_path / "d.f64", w=[1.0, 1e-12])
    assert not compare.vectors(large, same_off, 2e-10).there


def test_a_missing_tensor_is_zero(tmp_path: Path) -> None:
    whole, part = vectors(tmp_path / "a.f64", v=[0.0], w=[2.0]), vectors(tmp_path / "b.f64", w=[2.0])
    assert not compare.vectors(whole, part, 0.0).there
    assert compare.vectors(whole, vectors(tmp_path / "c.f64", v=[0.0]), 0.0).max_abs == 2.0


@pytest.mark.parametrize("value", [nan, inf, -inf])
def test_what_is_not_finite_differs_from_every_number(value: float) -> None:
    assert isinf(compare.greatest(np.array([1.0]), np.array([value])))


def test_the_same_infinity_in_both_is_no_difference() -> None:
    assert compare.greatest(np.array([inf, nan]), np.array([inf, nan])) == 0.0


def test_noise_around_a_zero_gradient_may_differ_where_an_optimizer_has_blown_it_up(tmp_path: Path) -> None:
    expected, got = vectors(tmp_path / "a.f64", b=[1.0], w=[1.0]), vectors(tmp_path / "b.f64", b=[1.0 + 1e-8], w=[1.0])
    assert compare.vectors(expected, got, 2e-10).there
    assert not compare.vectors(expected, got, 2e-10, lenient=["b"]).there


def trace(*losses: float, events: str = "forward backward", **consumed: dict[str, int]) -> Trace:
    counts = {field: Counter(numbers) for field, numbers in consumed.items()}
    return Trace(0, Path(), events.split(), list(losses), consumed=counts)


def test_the_mean_over_the_ranks_or_their_sum_has_to_be_the_loss() -> None:
    reference = trace(2.0)
    for ranks in ([trace(1.0), trace(3.0)], [trace(0.5), trace(1.5)]):
        found = compare.loss(reference, ranks, 1e-9)
        assert found is not None
        assert not found[0].there
    wrong = compare.loss(reference, [trace(1.0), trace(2.0)], 1e-9)
    assert wrong is not None
    assert wrong[0].there


def test_a_loss_that_is_not_a_number_in_both_is_no_difference() -> None:
    found = compare.loss(trace(nan), [trace(nan), trace(1.0)], 1e-9)
    assert found is not None
    assert not found[0].there


def test_where_a_cached_gradient_is_sent_back_the_loss_is_not_compared() -> None:
    cached = trace(1.0, 7.0, events="backward forward backward")
    assert compare.loss(trace(2.0), [cached], 1e-9) is None


NUMBERS = {"x": {"p": [0], "q": [1], "r": [2]}}


def test_a_sample_that_nobody_was_given_is_missing_and_one_too_many_is_repeated() -> None:
    reference = trace(x={"p": 1, "q": 1, "r": 1})
    found = compare.consumption(reference, [trace(x={"p": 1}), trace(x={"p": 1, "q": 1})], NUMBERS)
    assert found is not None
    assert (found.missing, found.repeated, found.times) == ((2,), ((0, 2.0),), 1.0)


def test_every_sample_fed_twice_is_no_difference_between_samples() -> None:
    reference = trace(x={"p": 1, "q": 1, "r": 1})
    found = compare.consumption(reference, [trace(x={"p": 2, "q": 2, "r": 2})], NUMBERS)
    assert found is not None
    assert (found.difference, found.times) == (0.0, 2.0)


def test_rows_that_samples_share_do_not_hide_which_one_is_missing() -> None:
    numbers = {"x": {"p": [0], "q": [1], "r": [2]}, "mask": {"long": [0, 1, 2]}}
    reference = trace(mask={"long": 3}, x={"p": 1, "q": 1, "r": 1})
    found = compare.consumption(reference, [trace(mask={"long": 2}, x={"p": 1, "q": 1})], numbers)
    assert found is not None
    assert (found.missing, found.repeated) == ((2,), ())


def stepped(folder: Path, gradient: list[float], after: list[float]) -> Trace:
    """A rank that went from zero to these parameters."""
    folder.mkdir()
    values = {"initial": [0.0] * len(after), "clipped_gradient": gradient, "parameters": after}
    here = Trace(0, folder)
    here.vectors = {kind: vectors(folder / f"{kind}.f64", w=numbers) for kind, numbers in values.items()}
    return here


@pytest.mark.parametrize(("number", "differs"), [(0, True), (1, False)])
def test_an_update_is_as_uncertain_as_its_gradient(tmp_path: Path, number: int, differs: bool) -> None:
    """Adam steps by ±0.1 whatever the gradient's size: with 1e-8 ± 2e-8 that is chance, with 1 it is not."""
    reference = stepped(tmp_path / "reference", [1.0, 1e-8], [-0.1, -0.1])
    after = [-0.1, -0.1]
    after[number] = 0.1
    rank = stepped(tmp_path / "rank", [1.0, -1e-8], after)
    assert compare.parameters(reference, rank, 2e-5, [], same_gradient=True).there is differs
    assert compare.parameters(reference, rank, 2e-5, [], same_gradient=False).there


def test_without_a_field_in_common_samples_are_not_compared() -> None:
    assert compare.consumption(trace(x={"p": 1}), [trace()], NUMBERS) is None
