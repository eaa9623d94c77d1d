"""Tensors of which each rank holds a part: put together where the parts fit the whole of one process."""

import numpy as np
import pytest

from samestep.experiments.audit.running import joining
from samestep.experiments.audit.running.vectors import Array

WHOLE = np.arange(1.0, 13.0).reshape(4, 3)


@pytest.mark.parametrize(
    ("whole", "parts"),
    [
        (WHOLE, [WHOLE[:2], WHOLE[2:]]),
        (WHOLE, [WHOLE[:1], WHOLE[1:]]),
        (WHOLE, [WHOLE[:, :2], WHOLE[:, 2:]]),
        (WHOLE.ravel(), [WHOLE.ravel()[:7], np.append(WHOLE.ravel()[7:], [0.0, 0.0])]),
        (WHOLE.ravel(), [WHOLE.ravel()[6:], WHOLE.ravel()[:6]]),
    ],
    ids=["rows", "rows of another number", "columns", "a padded tail", "another order"],
)
def test_parts_that_fit_make_the_whole(whole: Array, parts: list[Array]) -> None:
    found = joining._whole(whole, parts)
    assert found is not None
    np.testing.assert_array_equal(found, whole)


@pytest.mark.parametrize(
    "parts",
    [[WHOLE[:2], WHOLE[2:3]], [WHOLE, WHOLE], [WHOLE[:2].ravel(), WHOLE[2:].ravel()]],
    ids=["a row is missing", "numbers after the end", "another number of axes"],
)
def test_parts_that_do_not_fit_make_none(parts: list[Array]) -> None:
    assert joining._whole(WHOLE, parts) is None


def test_parts_with_other_numbers_are_not_taken_for_another_order() -> None:
    found = joining._whole(WHOLE, [WHOLE[:2], 2 * WHOLE[2:]])
    assert found is not None
    np.testing.assert_array_equal(found[2:], 2 * WHOLE[2:])
