"""What a wrong norm gives away."""

from math import sqrt
from pathlib import Path

import numpy as np
import pytest

from samestep.experiments.audit.judging import norms
from samestep.experiments.audit.running.vectors import Vectors


@pytest.fixture
def gradient(tmp_path: Path) -> Vectors:
    """Squares 25, 144 and 9: the norm is √178."""
    return Vectors.write(
        tmp_path / "g.f64", {"a.w": np.array([3.0, 4.0]), "a.b": np.array([12.0]), "c": np.array([3.0])}
    )


def test_norms_whose_squares_add_up_are_those_of_shards(gradient: Vectors) -> None:
    assert norms.explain(sqrt(178), [5.0, sqrt(153)], gradient, sharded=False) == norms.NormFault("local_norm")


def test_norms_that_differ_and_do_not_add_up_are_ranks_own(gradient: Vectors) -> None:
    assert norms.explain(sqrt(178), [6.0, 7.0], gradient, sharded=False) == norms.NormFault("per_rank_clip")


def test_every_parameter_counted_on_each_of_three_ranks_makes_root_three(gradient: Vectors) -> None:
    found = norms.explain(sqrt(178), [sqrt(3 * 178)] * 3, gradient, sharded=False)
    assert found == norms.NormFault("copies_counted", 3, ("a.w", "a.b", "c"))


def test_the_tensors_that_were_counted_twice_are_named(gradient: Vectors) -> None:
    found = norms.explain(13.0, [sqrt(313)] * 2, Vectors(gradient.path, dict(list(gradient.places.items())[:2])), False)
    assert found == norms.NormFault("copies_counted", 2, ("a.b",))  # 313 = 169 + 144


def test_a_norm_that_is_too_small_on_all_ranks_is_none_of_these(gradient: Vectors) -> None:
    assert norms.explain(sqrt(178), [2.0, 2.0], gradient, sharded=False) is None


def test_a_norm_that_is_not_a_number_is_none_of_these(gradient: Vectors) -> None:
    assert norms.explain(sqrt(178), [float("nan"), 2.0], gradient, sharded=False) is None
