"""Files, forms and addresses that mean no good: each is answered, quickly, with what is wrong."""

import json
from typing import Any

import pytest

from samestep.app.calculators import registry
from samestep.app.contract.errors import InputError, RefusedError
from samestep.app.instruments import bodies, comparison, own_page, states
from samestep.app.instruments.case_files import MAX_CASES, Case, CaseList, read_file
from samestep.app.instruments.own_page import submitted
from samestep.app.instruments.states import Shown

LEDGER = registry()["replica_ledger"]


def told(content: bytes) -> str:
    with pytest.raises(RefusedError) as refused:
        read_file(LEDGER, content, "", {})
    assert {error.field for error in refused.value.errors} == {"file"}
    return refused.value.errors[0].en


def case_of(expected: Any) -> bytes:
    case = {"kind": "ledger", "inputs": {"microsteps": [[{"n": 2, "g": 1}]]}, "expected": expected}
    return json.dumps(case).encode()


def form(name: str, value: bytes, filename: str = "") -> tuple[str, bytes]:
    """A multipart form of one field, whose name may be any bytes."""
    file = f'; filename="{filename}"'.encode() if filename else b""
    head = b'--b\r\nContent-Disposition: form-data; name="' + name.encode("latin-1") + b'"' + file + b"\r\n\r\n"
    return "multipart/form-data; boundary=b", head + value + b"\r\n--b--\r\n"


def test_a_key_of_many_dotted_parts_is_looked_up_once() -> None:
    found = read_file(LEDGER, case_of({".".join(["reference"] * 60_000): 1, "reference": {"grad": 1.0}}), "", {})
    assert isinstance(found, Case)
    shown = own_page.opened(found)
    compared = shown.comparison()
    assert compared is not None
    assert (compared.agree, len(compared.unanswered)) == (1, 1)
    assert all(len(path) <= comparison.LONGEST_PATH + 1 for path in compared.unanswered)


@pytest.mark.parametrize(
    ("expected", "words"),
    [
        ([[0] * (comparison.MAX_VALUES + 1)], "more than 10,000 values"),
        (json.loads("[" * 40 + "1" + "]" * 40), "nested"),
        (10**400, "float64"),
    ],
)
def test_what_is_expected_has_a_limit_in_files_and_addresses(expected: Any, words: str) -> None:
    assert words in told(case_of({"reference": expected}))
    pairs = [("a", "2"), ("expected", json.dumps({"reference": expected}))]
    (error,) = states.shown(LEDGER, pairs).refusals
    assert error.field == "expected"
    assert words in error.en
    assert error.zh


@pytest.mark.parametrize("key", ["9" * 5_000, "9" * 30, "-1", "²", ""])
def test_a_step_that_leads_nowhere_is_not_answered(key: str) -> None:
    view = states.view_of(LEDGER, {})
    compared = comparison.compare({"rows": {key: 1}, key: 2}, view, {})
    assert (compared.total, len(compared.unanswered)) == (0, 2)


def test_below_a_null_everything_is_null() -> None:
    view = states.view_of(LEDGER, {"a": "0", "b": "0"})
    compared = comparison.compare({"reference": {"grad": None, "loss": {"deeper": [None, 1]}}}, view, {})
    assert (compared.agree, len(compared.differing)) == (2, 1)


def test_a_file_has_a_limit_of_cases_and_says_so() -> None:
    one = {"kind": "ledger", "inputs": {"microsteps": [[{"n": 2, "g": 1}]]}}
    assert "more than 1,000 cases" in told(json.dumps({"cases": [one] * (MAX_CASES + 1)}).encode())
    assert "more than 1,000 cases" in told(json.dumps({"cases": [{}] * 80_000}).encode())
    found = read_file(LEDGER, json.dumps({"cases": [{"kind": "x" * 10_000, "id": "y" * 10_000}]}).encode(), "", {})
    assert isinstance(found, CaseList)
    ((kind, ids),) = found.without_calculator.items()
    assert max(len(kind), *map(len, ids)) < 300
    assert "several cases" in told(json.dumps({"cases": [one], "padding": "x" * 5_000_000}).encode())


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_every_systems_line_end_ends_a_row_of_a_file_and_of_a_field(end: str) -> None:
    assert read_table(f"2,3{end}8,0{end}") == [["2", "3"], ["8", "0"]]
    body = bodies.read(LEDGER, {"body.n": f"2,3{end}8,0", "body.g": "1,1;1,1"}).body
    assert body["n"] == [["2", "3"], ["8", "0"]]


def read_table(text: str) -> Any:
    found = read_file(LEDGER, text.encode(), "n", {})
    assert isinstance(found, Case)
    return found.state.body["n"]


def test_a_cell_that_is_longer_than_csv_allows_is_refused_by_its_line() -> None:
    assert "line 2 is not CSV" in told(b'1,2\n"' + b"3" * 200_000 + b'",4')


def test_a_field_name_that_is_not_utf8_is_told_of_as_any_unknown_field() -> None:
    content_type, body = form("\xff\xfe", b"1")
    shown: Shown = submitted("replica_ledger", content_type, body)
    assert [error.code for error in shown.refusals] == ["extra_forbidden"]


def test_a_file_of_several_cases_is_no_state_to_save() -> None:
    cases = json.dumps({"cases": [json.loads(case_of({})), json.loads(case_of({}))]}).encode()
    shown = submitted("replica_ledger", *form("file", cases, "cases.json"))
    assert shown.cases is not None
    assert shown.body() is None


@pytest.mark.parametrize(
    ("name", "fields", "field"),
    [
        ("replica_ledger", {"counts": ";".join("1" * 4_097), "gradients": ";".join("1" * 4_097)}, "counts"),
        ("collectives", {"values": ";".join("1" * 4_097)}, "values"),
        ("overflow_skip", {"params": ";".join("1" * 4_097)}, "params"),
        ("clip_ownership", {"gradients": ";".join("1" * 4_097)}, "gradients"),
        ("framework_recipe", {"counts": ";".join("1" * 4_097)}, "counts"),
    ],
)
def test_an_address_takes_no_more_ranks_than_a_body(name: str, fields: dict[str, str], field: str) -> None:
    with pytest.raises(RefusedError) as refused:
        states.view_of(registry()[name], fields)
    assert field in {error.field for error in refused.value.errors}
    assert "4,096" in refused.value.errors[0].en


@pytest.mark.parametrize("field", ["tau", "logit_scale_log"])
def test_null_is_no_number_where_a_number_has_a_default(field: str) -> None:
    body = {"q": [[[1]], [[2]]], "d": [[[1]], [[-1]]], field: None}
    with pytest.raises(RefusedError) as refused:
        states.inputs_of(registry()["info_nce"], bodies.BodyState(body))
    assert refused.value.errors[0].path == (f"body.{field}",)


@pytest.mark.parametrize("field", ["lengths", "batch_sizes", "counts", "means"])
def test_a_list_without_an_entry_is_refused_by_its_field(field: str) -> None:
    body = {"lengths": [16, 64], "counts": [1, 1], field: []}
    with pytest.raises(RefusedError) as refused:
        states.view_of_body(registry()["batch_noise"], bodies.BodyState(body))
    assert refused.value.errors[0].path == (f"body.{field}",)


def test_limits_of_what_is_expected_name_the_field() -> None:
    with pytest.raises(InputError) as refused:
        comparison.check({"a": [[[]] * 20_000]})
    assert refused.value.field == ("expected",)
