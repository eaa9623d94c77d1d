"""The shelf's figure: dots as large as weights, a step as the tokens make it, and the sentence that sums it up."""

import math
from collections.abc import Mapping
from fractions import Fraction

import pytest

from samestep.app.contract.errors import RefusedError
from samestep.app.instruments.first_answer import FirstAnswer, fields_in, first_answer


def answer(**fields: str) -> FirstAnswer:
    return first_answer(fields_in(fields))


@pytest.mark.parametrize(("a", "b"), [(100, 900), (1, 999), (5, 5), (7, 3), (999_999, 1)])
def test_a_dots_area_is_its_tokens_weight_by_the_right_one(a: int, b: int) -> None:
    """DDP averages means: a token of a card with n of them weighs 1/(2n), where 1/(a + b) is right."""
    found = answer(a=str(a), b=str(b))
    for dot in found.dots:
        ratio = Fraction(a + b, 2 * (a, b)[dot.card])
        assert math.pi * dot.radius**2 / (math.pi * 6.0**2) == pytest.approx(float(ratio), rel=2e-2)
    on_a = sum(dot.card == 0 for dot in found.dots)
    assert 1 <= on_a < len(found.dots)
    assert on_a / len(found.dots) == pytest.approx(a / (a + b), abs=1 / len(found.dots))


def test_the_heavier_card_is_named_with_its_multiple() -> None:
    assert answer(a="100", b="900").heavier == ("A", "B", pytest.approx(9))
    assert answer(a="900", b="100").heavier == ("B", "A", pytest.approx(9))
    assert answer(a="50", b="50").heavier is None
    assert answer(a="100", b="900", framework="transformers/default").heavier is None


def test_the_step_is_the_weighted_sum_of_what_the_tokens_pull() -> None:
    found = answer(a="100", b="900")
    assert found.right == pytest.approx((0.8, 0.5))
    assert found.current == pytest.approx((0.0, 0.5))
    summed = answer(a="100", b="900", framework="torch_ddp/sum_hook")
    assert summed.current == pytest.approx((0.0, 1.0))


@pytest.mark.parametrize(("fields", "reason"), [({"a": "0"}, "empty_cell"), ({"a": "0", "b": "0"}, "zero_count")])
def test_an_undefined_step_has_a_reason_and_no_arrow(fields: Mapping[str, str], reason: str) -> None:
    found = answer(**fields)
    assert found.recipe.reason == reason
    assert found.current is None
    assert found.heavier is None


@pytest.mark.parametrize(
    ("field", "text"), [("a", "x"), ("b", "-1"), ("a", "1.5"), ("b", ""), ("a", "1e30"), ("framework", "no such")]
)
def test_a_wrong_field_is_named(field: str, text: str) -> None:
    with pytest.raises(RefusedError) as refused:
        answer(**{field: text})
    assert {error.field for error in refused.value.errors} == {field}
