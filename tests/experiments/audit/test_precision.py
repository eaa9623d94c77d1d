"""Which type a gradient was rounded to on its way."""

from pathlib import Path

import numpy as np
import pytest
import torch

from samestep.experiments.audit.judging import parameters, precision
from samestep.experiments.audit.running.vectors import Vectors


def pair(folder: Path, change: str | float) -> tuple[Vectors, Vectors]:
    """A gradient, and itself carried in a type or multiplied by a number."""
    values = np.random.default_rng(3).normal(size=500)
    changed = (
        torch.from_numpy(values).to(getattr(torch, change)).double().numpy()
        if isinstance(change, str)
        else values * np.where(np.arange(500) < 3, change, 1.0)
    )
    return Vectors.write(folder / "a.f64", {"w": values}), Vectors.write(folder / "b.f64", {"w": changed})


@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16"])
def test_the_type_is_named_by_the_size_of_its_rounding(tmp_path: Path, name: str) -> None:
    reference, found = pair(tmp_path, name)
    assert precision.carried_in(reference, found, parameters.residual(reference, found)) == name


def test_a_few_numbers_that_are_far_off_are_not_rounding(tmp_path: Path) -> None:
    reference, found = pair(tmp_path, 1.1)
    residual = parameters.residual(reference, found)
    assert residual < precision.LIKELY["bfloat16"]
    assert precision.carried_in(reference, found, residual) is None


def test_rounded_terms_may_be_further_off_than_a_rounded_sum(tmp_path: Path) -> None:
    reference, found = pair(tmp_path, 1.0 + 8 * precision.UNITS["float32"])
    residual = parameters.residual(reference, found)
    assert precision.carried_in(reference, found, residual, precision.TERMS) == "float32"
    assert precision.carried_in(reference, found, residual, 0.5) is None


def test_no_difference_is_no_rounding(tmp_path: Path) -> None:
    reference, found = pair(tmp_path, 1.0)
    assert precision.carried_in(reference, found, 0.0) is None
