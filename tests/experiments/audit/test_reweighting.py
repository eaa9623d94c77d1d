"""Effective weights of the cells, solved from gradients that are put together with known ones."""

from pathlib import Path

import numpy as np
import pytest

from samestep.experiments.audit.judging.explaining import reweighting
from samestep.experiments.audit.judging.explaining.reweighting import Span
from samestep.experiments.audit.running.vectors import Array, Vectors

COUNTS = np.array([7.0, 2.0, 5.0, 3.0, 8.0, 4.0])
RIGHT = COUNTS / 29
RANKS = 2


def basis(folder: Path, parameters: int = 40) -> list[Vectors]:
    """Six gradients of two tensors, drawn independently."""
    chance = np.random.default_rng(5)
    half = parameters // 2
    return [
        Vectors.write(
            folder / f"{i}.f64",
            {"a": chance.normal(size=half) * 10**-i, "b": chance.normal(size=parameters - half) * 10**-i},
        )
        for i in range(len(COUNTS))
    ]


def combined(folder: Path, columns: list[Vectors], weights: Array) -> Vectors:
    names = list(columns[0])
    total = {name: sum(w * column[name] for w, column in zip(weights, columns, strict=True)) for name in names}
    return Vectors.write(folder / "combined.f64", total)


def explained(folder: Path, weights: Array, parameters: int = 40) -> reweighting.Reweighting | None:
    columns = basis(folder, parameters)
    against = Span(columns).against(combined(folder, columns, weights))
    return reweighting.explain(against, RIGHT, COUNTS, RANKS)


REPLICA = np.concatenate([COUNTS[:3] / 14, COUNTS[3:] / 15]) / 2
DROPPED = RIGHT * [1, 1, 1, 1, 0, 1]
DOUBLED = RIGHT * [1, 2, 1, 1, 1, 1]


@pytest.mark.parametrize("parameters", [40, 3])
@pytest.mark.parametrize(
    ("weights", "pattern"),
    [
        (REPLICA, "replica_equal"),
        (np.full(6, 1 / 6), "microbatch_equal"),
        (DROPPED, "dropped_microbatch"),
        (DOUBLED, "duplicated_samples"),
    ],
)
def test_each_rule_is_named_and_its_weights_found_even_with_fewer_parameters_than_cells(
    tmp_path: Path, weights: Array, pattern: str, parameters: int
) -> None:
    found = explained(tmp_path, weights, parameters)
    assert found is not None
    assert found.pattern == pattern
    assert found.weights == pytest.approx(weights, abs=1e-9)


def test_the_right_weights_are_not_taken_for_a_replica_mean(tmp_path: Path) -> None:
    found = explained(tmp_path, RIGHT)
    assert found is not None
    assert found.pattern == "unknown"
    assert found.weights == pytest.approx(RIGHT, abs=1e-9)


def test_a_constant_on_top_of_a_rule_is_told_apart_from_the_rule(tmp_path: Path) -> None:
    found = explained(tmp_path, np.full(6, 1 / 2))
    assert found is not None
    assert (found.pattern, found.factor) == ("microbatch_equal", pytest.approx(3))


def test_the_cells_that_were_dropped_are_named(tmp_path: Path) -> None:
    found = explained(tmp_path, DROPPED)
    assert found is not None
    assert found.cells == (4,)


def test_weights_by_no_rule_are_still_printed(tmp_path: Path) -> None:
    weights = RIGHT * [1.1, 0.7, 1.3, 0.9, 1.0, 0.2]
    found = explained(tmp_path, weights)
    assert found is not None
    assert (found.pattern, list(found.weights)) == ("unknown", pytest.approx(list(weights)))


def test_a_gradient_that_is_lost_altogether_follows_no_rule(tmp_path: Path) -> None:
    found = explained(tmp_path, np.zeros(6))
    assert found is None or found.pattern in ("dropped_microbatch", "unknown")


def test_a_gradient_outside_the_span_of_the_cells_is_no_reweighting(tmp_path: Path) -> None:
    columns = basis(tmp_path)
    other = {name: columns[0][name] + 0.01 * np.arange(columns[0].size(name)) for name in columns[0]}
    against = Span(columns).against(Vectors.write(tmp_path / "other.f64", other))
    assert reweighting.explain(against, RIGHT, COUNTS, RANKS) is None


def test_the_gram_matrix_gives_the_weights_that_least_squares_on_the_whole_basis_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = basis(tmp_path)
    vector = combined(tmp_path, columns, REPLICA)
    dense, _ = Span(columns).against(vector).fit()
    monkeypatch.setattr(reweighting, "DENSE", 10)
    gram, residual = Span(columns).against(vector).fit()
    assert gram == pytest.approx(dense, abs=1e-10)
    assert residual < 1e-12


def test_a_cell_without_samples_has_weight_zero(tmp_path: Path) -> None:
    columns = basis(tmp_path)
    vector = combined(tmp_path, columns, REPLICA * [1, 1, 1, 1, 1, 0])
    weights, residual = Span([*columns[:5], None]).against(vector).fit()
    assert weights[5] == 0
    assert residual < 1e-12


def test_two_cells_with_the_same_gradient_have_no_weights_of_their_own(tmp_path: Path) -> None:
    columns = basis(tmp_path)
    assert Span(columns).unique
    assert not Span([*columns[:5], columns[0]]).unique
