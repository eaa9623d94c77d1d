"""The names of factors."""

import pytest

from samestep.experiments.audit.judging import scales


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (2.0, "P"),
        (3.0, "K"),
        (29.0, "N"),
        (6.0, "P*K"),
        (1 / 2, "1/P"),
        (1 / 3, "1/K"),
        (1 / 6, "1/(P*K)"),
        (29 / 2, "N/P"),
        (2 / 3, "P/K"),
        (3 / 2, "K/P"),
        (29 / 6, "N/(P*K)"),
        (4.0, "P^2"),
    ],
)
def test_with_coprime_p_and_k_every_factor_has_one_name(value: float, expected: str) -> None:
    factor = scales.name(value, 2, 3, 29)
    assert factor.names == (expected,)
    assert not factor.ambiguous


def test_with_equal_p_and_k_the_two_cannot_be_told_apart_and_both_are_said() -> None:
    assert scales.name(0.5, 2, 2, 29).names == ("1/P", "1/K")
    assert scales.name(0.5, 2, 2, 29).ambiguous


def test_the_simplest_expression_wins_over_a_longer_one_of_the_same_value() -> None:
    assert scales.name(2.0, 2, 3, 6).names == ("P",)  # N/K is 2 as well


def test_a_number_that_is_no_expression_has_no_name_but_its_value() -> None:
    factor = scales.name(0.8123, 2, 3, 29)
    assert factor.names == ()
    assert factor.name == "0.8123"


def test_a_factor_that_is_off_in_the_sixth_digit_is_not_taken_for_its_neighbour() -> None:
    assert scales.name(2.00001, 2, 3, 29).names == ()


def test_the_loss_scale_has_a_name_only_where_there_is_one() -> None:
    assert scales.name(1024.0, 2, 3, 29, loss_scale=1024.0).names == ("S",)
    assert scales.name(1024.0, 2, 3, 29).names == ()


@pytest.mark.parametrize(
    ("value", "name"),
    [(2**0.5, "sqrt(P)"), (2**-0.5, "1/sqrt(P)"), (29 / 48, "N/T(y)"), (29 / 96, "N/(P*T(y))"), (3 / 4, "3/4")],
)
def test_rarer_factors_have_their_names_too(value: float, name: str) -> None:
    assert scales.name(value, 2, 3, 29, sizes={"y": 48}).names == (name,)


@pytest.mark.parametrize(("value", "name"), [(-1.0, "-1"), (-2.0, "-P"), (-1 / 3, "-1/K")])
def test_a_sign_that_is_turned_round_is_named_too(value: float, name: str) -> None:
    assert scales.name(value, 2, 3, 29).names == (name,)


def test_a_rarer_name_is_never_preferred_to_a_common_one() -> None:
    assert scales.name(2.0, 2, 3, 29, sizes={"y": 58}).names == ("P",)  # T/N is 2 as well
