"""Numbers in bulk are read as the exact reader reads them one by one, and a bad one is named by its place."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, strategies as st

from samestep.app.contract.arrays import floats
from samestep.app.contract.errors import InputError
from samestep.app.contract.numbers import as_float, exact, extended, whole
from samestep.app.contract.rows import extended_rows_of, rows_of, write_rows
from samestep.app.mathematics.ragged import cut, place

TEXTS = st.from_regex(r"[+-]?([0-9]{1,25}(\.[0-9]{0,25})?|\.[0-9]{1,25})([eE][+-]?[0-9]{1,3})?", fullmatch=True)


def outcome(read: Any, value: object) -> Any:
    try:
        return read(value)
    except InputError as error:
        return error.code


@given(st.one_of(TEXTS, st.floats(), st.integers(), st.sampled_from(["1/3", " 2 ", "−1", "x", "", "1/0", True, None])))
@example("3e-324")  # float() takes it for 5e-324
@example("1.79769313486231575e308")  # float() rounds it into range
@example("1e-400")
def test_the_short_way_of_reading_a_number_is_the_nearest_float64_of_its_exact_value(value: object) -> None:
    assert outcome(as_float, value) == outcome(lambda v: float(exact(v)), value)


@pytest.mark.parametrize(("value", "number"), [("inf", math.inf), ("-INF", -math.inf), (" 0.5", 0.5), (3, 3.0)])
def test_extended_numbers_may_be_infinite(value: object, number: float) -> None:
    assert extended(value) == number


@pytest.mark.parametrize(("value", "number"), [(3, 3), ("4/2", 2), (5.0, 5), ("-0", 0)])
def test_a_whole_number_may_be_written_in_any_way(value: object, number: int) -> None:
    assert whole(value) == number


@pytest.mark.parametrize(
    ("value", "code"), [("1.5", "int_from_float"), (True, "number_type"), ("inf", "finite_number")]
)
def test_what_is_no_whole_number_is_refused(value: object, code: str) -> None:
    assert outcome(whole, value) == code


def test_plain_numbers_and_texts_give_the_same_array() -> None:
    plain = floats([1, 0.1, 2**70], as_float, lambda _: ())
    texts = floats([1, "0.1", str(2**70)], as_float, lambda _: ())
    assert plain.dtype == texts.dtype == np.float64
    np.testing.assert_array_equal(plain, texts)
    assert floats([], as_float, lambda _: ()).shape == (0,)


@pytest.mark.parametrize("bad", [10**400, math.nan, math.inf, "x", True, None])
def test_the_first_bad_number_is_named_by_its_place(bad: object) -> None:
    sizes = [2, 0, 3]
    with pytest.raises(InputError) as refused:
        floats([1.0, 2.0, 3.0, bad, "y"], as_float, lambda index: ("rows", *place(sizes, index)))
    assert refused.value.field == ("rows", 2, 1)


@given(st.lists(st.lists(st.integers(), max_size=4)))
def test_lists_end_to_end_can_be_cut_again_and_every_index_has_its_place(lists: list[list[int]]) -> None:
    flat, sizes = [value for row in lists for value in row], list(map(len, lists))
    assert cut(flat, sizes) == lists
    for index, value in enumerate(flat):
        r, k = place(sizes, index)
        assert lists[r][k] == value


def test_rows_are_written_as_they_are_read() -> None:
    assert rows_of(write_rows(rows_of("1,1/3;2"))) == rows_of("1,1/3;2")
    assert write_rows(extended_rows_of("inf,-inf;0.5")) == "inf,-inf;0.5"
