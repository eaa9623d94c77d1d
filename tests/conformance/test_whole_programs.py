"""Programs of the book that take seconds, run to their end: on demand, their first steps are among the tests."""

import re

from tests.book_claims.chapter_code import output, programs


def held_out(code: str) -> dict[int, str]:
    """The loss on held-out text that a training prints, by step."""
    return {int(step): loss for step, loss in re.findall(r"step +(\d+) +held out (\S+)", output(code))}


def test_the_model_of_one_page_learns_frequencies_first_and_passes_the_table_of_pairs() -> None:
    """Chapter 170: 5.52, then 3.09 beside 3.07 for frequencies, then 2.39 beside 2.41 for pairs."""
    found = held_out(programs("170-tiny-language-model")[0])
    assert (found[0], found[100], found[300]) == ("5.515", "3.086", "2.386")


def test_a_hundred_updates_do_not_show_that_the_mask_is_missing() -> None:
    code = programs("170-tiny-language-model")[0].replace(", is_causal=True", "").replace("8, 300\n", "8, 100\n")
    assert round(float(held_out(code)[100]), 2) == 3.09
