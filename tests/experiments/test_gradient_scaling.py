"""The measured factors are M, D and M·D, and unequal micro-batches have none."""

from typing import Any

import pytest

from samestep.experiments import calculated

CASES = [(replicas, count) for replicas in (2, 3) for count in (1, 2, 3, 4)]


def row(lab: Any, name: str) -> Any:
    return lab.rows("gradient_scaling")[name]


def test_every_check_holds(lab: Any) -> None:
    assert lab.results["gradient_scaling"]["verdict"] == "holds", lab.output


@pytest.mark.parametrize(("replicas", "count"), CASES)
def test_a_sum_over_processes_is_m_times_d_too_large_and_a_mean_m_times(lab: Any, replicas: int, count: int) -> None:
    summed, averaged = (row(lab, f"d{replicas}-m{count}-{path}")["values"] for path in ("sum", "mean"))
    assert summed["factor"] == pytest.approx(replicas * count, abs=1e-12)
    assert averaged["factor"] == pytest.approx(count, abs=1e-12)
    assert summed["accumulated_factor"] == pytest.approx(count, abs=1e-12)
    assert summed["largest_ratio"] - summed["smallest_ratio"] < 1e-10  # one factor for all elements


@pytest.mark.parametrize(("replicas", "count"), CASES)
def test_scaling_loss_or_gradient_brings_the_reference_back(lab: Any, replicas: int, count: int) -> None:
    for path in ("sum-gradient-scaled", "mean-loss-scaled", "mean-by-count"):
        assert row(lab, f"d{replicas}-m{count}-{path}")["max_abs_difference"]["gradient"] <= 2e-10


def test_unequal_micro_batches_have_no_factor_at_all(lab: Any) -> None:
    for path in ("sum", "mean", "sum-gradient-scaled", "mean-loss-scaled"):
        wrong = row(lab, f"d3-m3-unequal-{path}")
        assert wrong["max_abs_difference"]["multiple"] > 1e-6  # not even the nearest multiple fits
        assert wrong["values"]["largest_ratio"] > 1.1 * wrong["values"]["smallest_ratio"]
    assert row(lab, "d3-m3-unequal-mean-by-count")["max_abs_difference"]["gradient"] <= 2e-10


def test_the_calculator_gives_the_measured_factors(lab: Any) -> None:
    result = lab.results["gradient_scaling"]
    found = calculated.agreement("gradient_scaling", result["setup"], result["rows"])
    assert found is not None
    assert len(found) == len(CASES) * 4
    assert max(found.values()) <= 1e-12
