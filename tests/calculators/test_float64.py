"""Numbers of any size, in any field of any calculator: an answer in float64, or the field that is to blame."""

import copy
import json
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from samestep.app.calculators import Calculator, registry
from samestep.app.contract.errors import FieldError, RefusedError
from samestep.app.contract.models import Result
from samestep.app.contract.rows import split_rows
from samestep.app.instruments import states
from samestep.app.instruments.bench import more_of
from samestep.app.instruments.bodies import body_fields
from samestep.app.instruments.panels import default_texts
from samestep.app.instruments.states import refusing
from tests.kit import cases

KINDS = {
    "replica_ledger": "ledger",
    "info_nce": "infonce",
    "clip_ownership": "clip",
    "overflow_skip": "overflow",
    "empty_step": "optimizer_empty_step",
    "sampler_padding": "sampler",
}
SIZES = st.builds(
    lambda sign, digits, power: f"{sign}{digits}e{power}",
    st.sampled_from(["", "-"]),
    st.sampled_from(["1", "1.7"]),
    st.one_of(st.integers(-320, 307), st.sampled_from([-320, -310, -200, -162, 154, 162, 290, 307])),
) | st.sampled_from(["0", "5e-324", "1.7976931348623157e308", "2", "1/3"])

Path = tuple[str | int, ...]


def numbers(value: Any, path: Path = ()) -> Iterator[Path]:
    """The places of the numbers in a body."""
    if isinstance(value, dict):
        for name, entry in value.items():
            yield from numbers(entry, (*path, name))
    elif isinstance(value, list):
        for index, entry in enumerate(value):
            yield from numbers(entry, (*path, index))
    elif (isinstance(value, int | float) and not isinstance(value, bool)) or (
        isinstance(value, str) and value.replace(".", "").replace("-", "").isdigit()
    ):
        yield path


def _is_number(value: Any) -> bool:
    if isinstance(value, str):
        return value.replace(".", "").replace("-", "").isdigit()
    return isinstance(value, int | float) and not isinstance(value, bool)


def replaced(body: Any, path: Path, value: str) -> None:
    for step in path[:-1]:
        body = body[step]
    body[path[-1]] = value


def fields_of(calculator: Calculator, *, panel: bool) -> set[str]:
    if panel:
        return set(calculator.query.model_fields)
    inner = [name for model in calculator.inputs.in_place.values() for name in model.model_fields]
    return {*calculator.inputs.model_fields, *inner, "scheme"}


def answered(run: Callable[[], Result], known: set[str]) -> None:
    """In finite JSON, or refused with a field that was given."""
    errors: tuple[FieldError, ...] = ()
    try:
        with refusing():
            result = run()
            json.loads(result.__pydantic_serializer__.to_json(result), parse_constant=pytest.fail)
    except RefusedError as error:
        errors = error.errors
    assert {one.field for one in errors} <= known, errors


def bodies(calculator: Calculator) -> list[dict[str, Any]]:
    """The body of the panel's defaults, lists in it written out, and those of the worked cases."""
    body = states.of_query(calculator, {}).body
    for name, value in body.items():
        if isinstance(value, str) and "," in value and body_fields(calculator)[name].kind == "list":
            body[name] = [float(Fraction(cell)) for row in split_rows(value) for cell in row]
    kind = KINDS.get(calculator.name, calculator.name)
    known = fields_of(calculator, panel=False)
    return [body, *(case["inputs"] for case in cases(kind).values() if case["inputs"].keys() <= known)]


@pytest.mark.parametrize("name", registry())
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_body_of_any_sizes_is_answered_in_float64_or_refused_by_field(name: str, data: st.DataObject) -> None:
    calculator = registry()[name]
    body = copy.deepcopy(data.draw(st.sampled_from(bodies(calculator))))
    places = list(numbers(body))
    if places:
        for place in data.draw(st.lists(st.sampled_from(places), min_size=1, max_size=4, unique=True)):
            replaced(body, place, data.draw(SIZES))
    text = json.dumps(body)
    known = fields_of(calculator, panel=False)
    answered(lambda: calculator.present(calculator.inputs.model_validate_json(text), None), known)


@pytest.mark.parametrize("name", registry())
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_panel_fields_of_any_sizes_are_answered_in_float64_or_refused_by_field(name: str, data: st.DataObject) -> None:
    calculator = registry()[name]
    texts = default_texts(calculator)
    given_sizes = data.draw(st.dictionaries(st.sampled_from(sorted(texts)), SIZES, min_size=1, max_size=3))
    fields = {**texts, **given_sizes}
    known = fields_of(calculator, panel=True)
    answered(lambda: calculator.panel(calculator.query.model_validate(fields)), known)
    assert_body_reads_back(calculator, fields)


@pytest.mark.parametrize("number", ["1e-300", "5e-324", "1e-20", "0.12345678901234567890123", "12345678901234567890.5"])
@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("overflow_skip", "scale"),
        ("ratio_fingerprint", "reference_gradient"),
        ("reduction_precision", "values"),
        ("update_rounding", "gradients"),
        ("replica_ledger", "a"),
    ],
)
def test_a_number_that_no_short_ratio_writes_goes_into_a_body_as_a_decimal(name: str, field: str, number: str) -> None:
    assert_body_reads_back(registry()[name], {field: number})
    shown = states.shown(registry()[name], [(field, number)])
    assert shown.view is None or more_of(shown).numbers


def assert_body_reads_back(calculator: Calculator, fields: dict[str, str]) -> None:
    """What a panel's state becomes in a file, a link and a program is read again, unless it cannot be written."""
    try:
        body = states.of_query(calculator, fields)
    except RefusedError:
        return
    states.inputs_of(calculator, body)


@pytest.mark.parametrize(
    ("name", "fields", "field"),
    [
        ("replica_ledger", {"a": "1e308", "b": "1e308"}, "a"),
        ("replica_ledger", {"b": "1e-310"}, "b"),  # a token would weigh more than float64 holds: no null for it
        ("framework_recipe", {"counts": "1/3,2/7", "accumulation": ""}, "counts"),
        ("direction_map", {"target_a": "1.7e308", "theta": "-1.7e308"}, "target_a"),
    ],
)
def test_what_leaves_float64_names_the_farthest_number(name: str, fields: dict[str, str], field: str) -> None:
    with pytest.raises(RefusedError) as refused:
        states.view_of(registry()[name], fields)
    assert [error.field for error in refused.value.errors] == [field]
    assert refused.value.errors[0].zh
