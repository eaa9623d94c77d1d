"""Four ranks find the right gradients by the right axes, and miss them elsewhere by what the calculators predict."""

from typing import Any

import pytest


def test_every_check_holds(lab: Any) -> None:
    assert lab.results["mesh"]["verdict"] == "holds", lab.output


@pytest.mark.parametrize(
    ("row", "multiple"),
    [
        ("tensor-norm-right", 1),
        ("tensor-norm-averaged-over-tp", 1 / 2),
        ("tensor-dense-summed", 2),
        ("pipeline-schedule-divides", 1),
        ("pipeline-both-divide", 1 / 4),
        ("pipeline-nobody-divides", 4),
        ("pipeline-every-call-divides", 7 / 16),
        ("pipeline-tied-averaged", 1 / 2),
        ("experts-expert-divided-by-its-own-group", 2),
        ("context-context-averaged", 1 / 4),
    ],
)
def test_a_gradient_is_the_stated_multiple_of_the_right_one_on_every_rank(lab: Any, row: str, multiple: float) -> None:
    assert lab.rows("mesh")[row]["values"]["multiple"] == pytest.approx([multiple] * 4, rel=1e-12)


@pytest.mark.parametrize(
    "row", ["tensor-norm-not-reduced-over-tp", "pipeline-tied-not-summed", "context-context-not-reduced"]
)
def test_a_part_of_a_sum_is_no_multiple_of_it_and_the_parts_add_up(lab: Any, row: str) -> None:
    found = lab.rows("mesh")[row]["max_abs_difference"]
    assert found["gradient"] > 1e-3
    assert found["sum"] < 1e-12
