"""The programs of one process in chapters 10 to 60, and in chapter 900, do what the text beside them says."""

import re
from typing import Any

import pytest
import torch

from tests.book_claims.chapter_code import output, programs

_NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:e[-+]\d+)?")
ROUNDING = 1e-12


def numbers(line: str) -> list[float]:
    return [float(found) for found in _NUMBER.findall(line)]


def lines_of(program: str) -> list[str]:
    return output(program).splitlines()


def test_equal_pieces_are_off_by_a_factor_and_unequal_ones_by_more() -> None:
    """Chapter 10, with the two lines of its third exercise added."""
    (program,) = programs("10-gradient-scaling")
    tail = """
five = raw_sum(equal[:5], 1 / (P * K))
report("five of six, all samples", five)
target = raw_sum([slice(20)])
report("five of six, own samples", five)
"""
    lines = lines_of(program + tail)
    found = [numbers(line.partition("factor")[2].replace("not a factor:", "")) for line in lines]
    factors, rests = zip(*found, strict=True)
    assert factors[:3] == (6, 1, 1)
    assert all(rest < ROUNDING for rest in rests[:3])
    assert rests[3] > 0.1
    assert rests[4] > 0.01
    assert factors[5] == pytest.approx(5 / 6, abs=1e-4)
    assert rests[5] < ROUNDING


def test_the_regression_test_of_the_case_passes_and_a_replica_without_labels_takes_a_third_of_the_weight() -> None:
    """Chapter 60, with the replica that its third exercise adds."""
    (program,) = programs("60-gradient-flip")
    for source in (program, program.replace("COUNTS = [2, 8]", "COUNTS = [2, 8, 0]")):
        names: dict[str, Any] = {"__name__": "program"}
        exec(compile(source, "chapter", "exec"), names)
        names["test_every_token_weighs_the_same"]()
        names["test_the_fixture_would_catch_a_flip"]()
    right, wrong = (float(names["weights"](names[rule]).sum()) for rule in ("scaled_loss", "mean_of_means"))
    assert right == pytest.approx(1)
    assert wrong == pytest.approx(2 / 3)
    even: dict[str, Any] = {"__name__": "program"}
    exec(compile(program.replace("COUNTS = [2, 8]", "COUNTS = [5, 5]"), "chapter", "exec"), even)
    with pytest.raises(AssertionError):
        even["test_the_fixture_would_catch_a_flip"]()


def test_contracted_derivatives_agree_where_no_path_is_cut_and_uneven_ranks_escape_them() -> None:
    """Chapter 30, with the three ranks of its third exercise and the line that repairs them."""
    (program,) = programs("30-infonce-derivatives")
    signs = re.compile(r"[-+]\d+\.\d+")
    answers = [(signs.findall(line), line.split()[-1]) for line in lines_of(program)]
    assert [verdict for _, verdict in answers] == ["agree", "DISAGREE", "DISAGREE", "DISAGREE"]
    assert set(answers[0][0]) == {"-0.292850"}
    assert answers[3][0] == ["-0.292850", "-0.292850", "-1.171400"]
    dealt = program.replace("P, rows = 4, torch.arange(4).chunk(4)", "P, rows = 3, torch.arange(4).split([1, 1, 2])")
    assert dealt != program
    first = lines_of(dealt)[0]
    assert set(signs.findall(first)) == {"-0.289101"}
    assert first.split()[-1] == "agree"
    repaired = dealt.replace("per_query[own].mean()", "per_query[own].sum() * P / len(a)")
    assert repaired != dealt
    assert set(signs.findall(lines_of(repaired)[0])) == {"-0.292850"}


def test_a_gradient_of_4e_minus_34_is_zero_in_float16_alone() -> None:
    """Chapter 30: at a temperature of 0.01."""
    gradient = torch.tensor(3.6097e-34)
    assert gradient.to(torch.float16) == 0
    assert gradient.to(torch.bfloat16) > 3.5e-34


def test_weights_are_read_where_cells_add_up_and_a_rest_is_left_where_they_do_not() -> None:
    """Chapter 50, with the two rules of its third exercise added."""
    (program,) = [program for program in programs("50-first-difference") if "RULES" in program]
    added = """
    "means times P over K": lambda i, z, t: cross_entropy(z, t) * P / K,
    "lost, over the rest": lambda i, z, t: total(z, t) * P / (N - 12) * (i != 4),
}
reference ="""
    assert program.count("}\nreference =") == 1
    *rules, right = lines_of(program.replace("}\nreference =", added))
    found = {line[:20].split("  ")[0].strip(): numbers(line[17:]) for line in rules}
    shares = numbers(right)
    for name, (_, rho, unexplained, *weights) in found.items():
        assert len(weights) == 6, name
        assert (unexplained < ROUNDING) == (name != "centred logits"), name
        assert (rho < ROUNDING) == (name in ("P*S/N", "K forgotten")), name
    assert found["P*S/N"][3:] == shares
    assert found["K forgotten"][0] == 3
    assert 1 < found["replica means"][0] < 1.05
    assert found["means times P over K"][3:] == [0.333] * 6
    assert found["means times P over K"][1] == found["microstep means"][1]
    assert found["lost, over the rest"][3:] == pytest.approx([n / 48 for n in (3, 7, 13, 17, 0, 8)], abs=6e-4)


def test_exact_fractions_confirm_the_scaled_sum_in_every_window_and_replica_means_in_25() -> None:
    """Chapter 900, the answer of its third exercise."""
    (program,) = programs("900-sources-and-scope")
    assert lines_of(program) == ["1000 windows, P/N right in all; replica means right in 25"]
