"""The own pages as workbenches: whole bodies in addresses and forms, files in and out, without a script."""

import json
import math
import random
import re
from collections.abc import Iterator
from fractions import Fraction
from html.parser import HTMLParser
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from starlette.testclient import TestClient

from samestep.app.calculators import registry
from samestep.app.contract.paths import leaves
from samestep.app.instruments.bodies import BodyState, body_fields, read, text_of, value_of, written
from samestep.app.instruments.case_files import KINDS
from samestep.app.instruments.comparison import compare
from samestep.app.instruments.states import of_query, query_of, view_of_body
from tests.kit import CASE_FILE, cases

CASES = cases()
NOT_A_BODY = {"Z-02"}
"""Its inputs are two further worked states under names of their own."""
BODIES = [
    case_id
    for case_id, case in CASES.items()
    if KINDS.get(case["kind"], case["kind"]) in registry() and case_id not in NOT_A_BODY
]
NAMES = sorted(registry())


class Page(HTMLParser):
    """What a page holds of outputs, links, form fields and messages."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.values: dict[str, str] = {}
        self.hrefs: list[dict[str, str | None]] = []
        self.controls: dict[str, dict[str, str | None]] = {}
        self.errors: dict[str, dict[str, str | None]] = {}
        self.attributes: dict[str, str | None] = {}
        self.texts: dict[str, str] = {}
        self._typing = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.attributes |= {name: value for name, value in attrs if name.startswith("data-")}
        if "data-field" in found and "data-value" in found:
            self.values.setdefault(str(found["data-field"]), str(found["data-value"]))
        if "href" in found:
            self.hrefs.append(found)
        if found.get("name") and tag in ("input", "select", "textarea"):
            self.controls[str(found["name"])] = found
            self._typing = str(found["name"]) if tag == "textarea" else ""
        if "data-error-for" in found:
            self.errors[str(found["data-error-for"])] = found

    def handle_endtag(self, tag: str) -> None:
        if tag == "textarea":
            self._typing = ""

    def handle_data(self, data: str) -> None:
        if self._typing:
            self.texts[self._typing] = self.texts.get(self._typing, "") + data

    def link(self, attribute: str, value: str | None = None) -> str:
        found = (h for h in self.hrefs if attribute in h and (value is None or h[attribute] == value))
        return str(next(found)["href"])


def send(client: TestClient, path: str, content: bytes | str, name: str = "a.json", **fields: str) -> Any:
    """A form with a file, as a browser without a script sends it."""
    return client.post(path, files={"file": (name, content)}, data=fields)


def answers(page: Page, path: str, expected: Any, tolerance: dict[str, float]) -> bool:
    """Whether the page shows the expected value at its path."""
    if expected is None:
        return path not in page.values
    shown = page.values.get(path)
    if shown is None:
        return False
    if isinstance(expected, bool) or not isinstance(expected, int | float):
        return shown == (expected if isinstance(expected, str) else json.dumps(expected))
    return math.isclose(float(shown), expected, rel_tol=tolerance["rtol"], abs_tol=tolerance["atol"])


# ---- worked cases


@pytest.mark.parametrize(("case_id", "lang"), [(case_id, ("zh", "en")[i % 2]) for i, case_id in enumerate(BODIES)])
def test_a_case_opened_as_a_file_shows_its_expected_numbers(client: TestClient, case_id: str, lang: str) -> None:
    case = CASES[case_id]
    name = KINDS.get(case["kind"], case["kind"])
    found = send(client, f"/{lang}/calculators/gradient_scaling", json.dumps(case))
    if found.status_code == 303:
        assert found.headers["location"].startswith(f"/{lang}/calculators/{name}?")
        found = client.get(found.headers["location"])
    assert found.status_code == 200
    page = Page(found.text)
    assert page.attributes["data-agree"] == page.attributes["data-of"] != "0"
    told = compare(case["expected"], view_of_body(registry()[name], BodyState(case["inputs"])), case["tolerance"])
    wrong = [
        leaf.path
        for leaf in leaves(case["expected"])
        if leaf.path not in told.unanswered
        if not answers(page, leaf.path, leaf.value, case["tolerance"])
    ]
    assert wrong == []


def test_a_wrong_expectation_is_told_apart(client: TestClient) -> None:
    case = CASES["C-01"] | {"expected": CASES["C-01"]["expected"] | {"global_norm": 5.1}}
    found = send(client, "/en/calculators/clip_ownership", json.dumps(case))
    page = Page(client.get(found.headers["location"]).text)
    assert int(str(page.attributes["data-of"])) - int(str(page.attributes["data-agree"])) == 1


def test_what_is_not_demanded_is_listed_as_not_answered() -> None:
    case = CASES["C-06"]
    found = compare(case["expected"], view_of_body(registry()["clip_ownership"], BodyState(case["inputs"])), {})
    assert found.unanswered == ("norm_if_experts_omitted",)
    assert found.differing == ()


def test_the_whole_file_lists_its_cases_each_in_its_calculator(client: TestClient) -> None:
    page = Page(send(client, "/en/calculators/info_nce", CASE_FILE.read_bytes()).text)
    hrefs = [str(link["href"]) for link in page.hrefs]
    assert sum("&expected=" in href for href in hrefs) == len(BODIES) - 2 + len(NOT_A_BODY)
    clip = next(href for href in hrefs if href.startswith("/en/calculators/clip_ownership?") and "expected=" in href)
    assert "data-comparison" in client.get(clip).text
    assert "audit" in send(client, "/en/calculators/info_nce", CASE_FILE.read_bytes()).text


def test_a_case_that_no_calculator_takes_is_refused_clearly(client: TestClient) -> None:
    found = send(client, "/en/calculators/info_nce", json.dumps(CASES["A-01"]))
    assert found.status_code == 422
    assert "which no calculator takes" in found.text


# ---- whole bodies


@pytest.mark.parametrize("name", NAMES)
def test_a_panel_and_its_body_show_the_same_numbers(client: TestClient, name: str) -> None:
    switch = urlsplit(Page(client.get(f"/en/calculators/{name}").text).link("data-switch", "general"))
    page = client.get(f"{switch.path}?{switch.query}")
    assert page.status_code == 200
    assert "data-general" in page.text
    panel = client.get(f"/api/{name}").json()
    assert client.get(f"/api/{name}?{switch.query}").json() == panel
    assert Page(page.text).link("data-switch", "panel") == f"/en/calculators/{name}"


@pytest.mark.parametrize("name", NAMES)
def test_the_form_of_a_body_sends_what_it_was_given(client: TestClient, name: str) -> None:
    calculator = registry()[name]
    fields = written(calculator, of_query(calculator, {}))
    page = Page(client.get(f"/en/calculators/{name}", params=fields).text)
    for address, text in fields.items():
        assert address in page.controls
        if address in page.texts:
            assert page.texts[address].strip() == text
    assert read(calculator, fields) == read(calculator, dict(parse_qsl(query_of(fields))))


@pytest.mark.parametrize("name", NAMES)
def test_no_calculator_has_a_field_of_the_workbench(name: str) -> None:
    assert not {"expected", "tolerance", "file", "into", "as"} & set(registry()[name].query.model_fields)


def test_a_wrong_cell_is_marked_at_its_place_and_the_rest_stays(client: TestClient) -> None:
    for lang, words in (("en", "row 2, column 3"), ("zh", "第 2 行，第 3 列")):
        found = client.get(f"/{lang}/calculators/replica_ledger?body.n=1,2,3;4,5,six&body.g=1,1,1;1,1,1")
        page = Page(found.text)
        assert found.status_code == 422
        assert page.errors["body.n"]["data-cell"] == "1 2"
        assert words in found.text
        assert page.texts["body.n"].strip() == "1,2,3;4,5,six"
        assert page.texts["body.g"].strip() == "1,1,1;1,1,1"


def test_a_wrong_cell_of_the_panel_has_its_place_too(client: TestClient) -> None:
    found = client.get("/en/calculators/replica_ledger/result?counts=1,x&gradients=1,1")
    assert Page(found.text).errors["counts"]["data-cell"] == "0 1"


def test_an_empty_body_field_that_needs_a_number_is_refused(client: TestClient) -> None:
    found = client.get("/en/calculators/clip_order?body.microstep_grads=3,4&body.max_norm=&body.eps=0")
    assert found.status_code == 422
    assert list(Page(found.text).errors) == ["body.max_norm"]


def test_bodies_are_written_as_they_are_read() -> None:
    fields = body_fields(registry()["replica_ledger"])
    for name, value in (
        ("n", [["2", "1/3"], ["0.5"]]),
        ("n", [["1"], []]),
        ("n", [["5"]]),
        ("theta0", ["1"]),
        ("theta0", ["1", "2"]),
        ("theta0", "1"),
        ("schemes", [{"name": "a;b, c", "denominator": "cell"}]),
    ):
        field = fields[name]
        assert value_of(field, text_of(value, field.form)) == value
    assert text_of([[2, 0.5]], fields["n"].form) == "2,0.5"


def test_a_scheme_of_the_bodys_own_is_shown(client: TestClient) -> None:
    schemes = '[{"name":"mine","denominator":"global","multiplier":"P"},{"name":"half","denominator":"global"}]'
    query = {"body.n": "2;8", "body.g": "-2;1", "body.schemes": schemes}
    first, second = (
        client.get("/api/replica_ledger", params=query | scheme).json() for scheme in ({}, {"scheme": "half"})
    )
    assert (first["selected"], second["selected"]) == ("mine", "half")
    assert first["current"]["grad"] == 2 * second["current"]["grad"]
    assert client.get("/zh/calculators/replica_ledger", params=query).status_code == 200


# ---- files out and in again


def _states() -> Iterator[tuple[str, dict[str, str]]]:
    for name in NAMES:
        yield name, {}
    for case_id in BODIES:
        case = CASES[case_id]
        name = KINDS.get(case["kind"], case["kind"])
        yield name, written(registry()[name], BodyState(case["inputs"]))
    yield "replica_ledger", {"counts": "2,3;8,0;1", "gradients": "-2,1;1/3,0.5;3", "scheme": "P_over_N_then_sum"}
    yield "clip_ownership", {"gradients": "inf;32", "replicated": "96", "norm_type": "inf"}


@pytest.mark.parametrize(("name", "fields"), list(_states()))
def test_a_saved_state_opens_as_the_same_state(client: TestClient, name: str, fields: dict[str, str]) -> None:
    saved = client.post(f"/en/calculators/{name}/case", data=fields)
    assert saved.status_code == 200
    assert saved.headers["content-disposition"] == f'attachment; filename="{name}.json"'
    assert client.get(f"/zh/calculators/{name}/case", params=fields).content == saved.content
    found = send(client, f"/en/calculators/{name}", saved.content)
    assert found.status_code == 303
    query = urlsplit(found.headers["location"]).query
    assert client.get(f"/api/{name}?{query}").json() == client.get(f"/api/{name}", params=fields).json()
    assert client.get(f"/en/calculators/{name}/case?{query}").json() == _laid_out(name, saved.json())


def _laid_out(name: str, case: dict[str, Any]) -> dict[str, Any]:
    """Columns of a ledger stand at the top of the body that an address gives; numbers are the texts typed."""
    calculator = registry()[name]
    state = read(calculator, written(calculator, BodyState(case["inputs"])))
    return case | {"inputs": state.body}


def test_a_refused_state_is_not_saved(client: TestClient) -> None:
    assert client.get("/en/calculators/replica_ledger/case?a=x").status_code == 422


def test_a_bare_body_is_a_file_too(client: TestClient) -> None:
    body = {"microstep_grads": [[3, 4], [-3, 0]], "max_norm": 1}
    found = send(client, "/en/calculators/clip_order", json.dumps(body))
    assert found.headers["location"] == "/en/calculators/clip_order?body.microstep_grads=3,4;-3,0&body.max_norm=1"
    wrong = send(client, "/en/calculators/clip_order", json.dumps(body | {"max_norm": -1}))
    assert wrong.status_code == 422
    assert Page(wrong.text).errors.keys() == {"body.max_norm"}
    assert Page(wrong.text).texts["body.microstep_grads"].strip() == "3,4;-3,0"


# ---- tables


def _ledger(client: TestClient, text: str, **fields: str) -> Any:
    found = send(client, "/en/calculators/replica_ledger", text, "a.csv", **fields)
    if found.status_code != 303:
        return found
    return client.get("/api/replica_ledger?" + urlsplit(found.headers["location"]).query)


@pytest.mark.parametrize("first", [0, 1])
def test_the_long_form_is_a_window(client: TestClient, first: int) -> None:
    rows = [(1, 0, 8, "1", "1/2"), (0, 1, 3, "0.5", "1"), (0, 0, 2, "-2", "2")]
    lines = [f"{r + first},{k + first},{n},{g},{loss}" for r, k, n, g, loss in rows]
    found = _ledger(client, "rank,microstep,n,g,loss\n" + "\n".join(lines) + "\n").json()
    mean = sum((Fraction(n) * Fraction(g) for _, _, n, g, _ in rows), Fraction(0)) / 13
    assert found["reference"]["grad_exact"] == str(mean)
    assert [row["n"] for row in found["rows"]] == [5.0, 8.0]


def test_a_matrix_without_a_header_fills_the_chosen_field_and_leaves_the_rest(client: TestClient) -> None:
    state = {"body.n": "1,1;1,1", "body.g": "-2,1;1,0.5"}
    filled = _ledger(client, "2\t3\n8\t0\n", into="n", **state).json()
    assert filled["N"] == 13.0
    assert filled["reference"]["grad_exact"] == str(Fraction(-4 + 3 + 8, 13))
    other = _ledger(client, "2,3\n8,0\n", into="g", **state).json()
    assert other["reference"]["grad_exact"] == str(Fraction(13, 4))


def test_tables_of_other_calculators(client: TestClient) -> None:
    clip = "rank,id,grad,param,owner\n0,a,24,1,true\n1,a,24,1,false\n1,b,32,1,true\n"
    found = send(client, "/en/calculators/clip_ownership", clip, "a.csv", **{"body.max_norm": "1"})
    answer = client.get("/api/clip_ownership?" + urlsplit(found.headers["location"]).query).json()
    assert answer["global_norm"] == 40.0
    assert answer["norm_if_every_copy_counted"] == pytest.approx(math.sqrt(2 * 24**2 + 32**2))
    step = send(client, "/en/calculators/empty_step", "param,grad\n1,0\n-2,0\n", "a.csv", **{"body.lr": "0.1"})
    assert "body.param=1,-2&body.grad=0,0" in step.headers["location"]


@pytest.mark.parametrize(
    ("name", "table", "body"),
    [
        (
            "metric_ledger",
            "rank,batch,n,loss,tp,fp,fn\n2,1,1,4,0,0,1\n1,2,3,1/3,1,0,2\n1,1,2,0.5,2,1,0\n",
            {
                "cells": [
                    [
                        {"n": 2, "loss": "0.5", "tp": 2, "fp": 1, "fn": 0},
                        {"n": 3, "loss": "1/3", "tp": 1, "fp": 0, "fn": 2},
                    ],
                    [{"n": 1, "loss": 4, "tp": 0, "fp": 0, "fn": 1}],
                ]
            },
        ),
        (
            "metric_ledger",
            "rank;n;correct\n0;2;1\n0;3;3\n",
            {"cells": [[{"n": 2, "correct": 1}, {"n": 3, "correct": 3}]]},
        ),
        (
            "batch_statistics",
            "rank,microstep,tokens,assigned,probability\n0,0,4,4+0,0.75 0.25\n1,0,2,1+1,1/2+1/2\n",
            {
                "term": "load_balance",
                "cells": [
                    [{"tokens": 4, "assigned": [4, 0], "probability": ["0.75", "0.25"]}],
                    [{"tokens": 2, "assigned": [1, 1], "probability": ["1/2", "1/2"]}],
                ],
            },
        ),
        (
            "batch_statistics",
            "rank,microstep,value\n0,0,1\n0,0,2\n1,1,5\n1,1,7\n",
            {"term": "whiten", "values": [[[1, 2], []], [[], [5, 7]]]},
        ),
        (
            "loss_terms",
            "term,rank,count,sum,coefficient\nce,0,2,1,1\nce,1,4,3,1\nkl,0,1,1,0.1\nkl,1,1,5,0.1\n",
            {
                "terms": [
                    {"name": "ce", "counts": [[2], [4]], "sums": [[1], [3]]},
                    {"name": "kl", "coefficient": "0.1", "counts": [[1], [1]], "sums": [[1], [5]]},
                ]
            },
        ),
        (
            "rl_weights",
            "rank,microstep,length,group,reward\n0,0,10,0,1\n0,0,30,1,0\n0,1,5,0,0\n1,0,7,1,1\n",
            {
                "constant": 4,
                "completions": [
                    [
                        [{"length": 10, "group": 0, "reward": 1}, {"length": 30, "group": 1, "reward": 0}],
                        [{"length": 5, "group": 0, "reward": 0}],
                    ],
                    [[{"length": 7, "group": 1, "reward": 1}], []],
                ],
            },
        ),
        ("objective_weights", "rank,length\n0,4\n0,2\n1,8\n", {"constant": 4, "sequences": [[[4, 2]], [[8]]]}),
        (
            "pipeline_schedule",
            "call,microbatch,part,count\n1,1,1+2,3\n1,2,2+-1,5\n2,1,0 1/3,1\n",
            {"stages": 3, "parts": [[[1, 2], [2, -1]], [[0, "1/3"]]], "counts": [[3, 5], [1]]},
        ),
        (
            "mesh_ledger",
            "class,contribution\ndense,3\nexpert,1/3\n",
            {"tp": 1, "contributions": {"dense": [3], "expert": ["1/3"]}},
        ),
        ("mesh_ledger", "class,square\ndense,72\nexpert,128\n", {"tp": 1, "squares": {"dense": 72, "expert": 128}}),
    ],
    ids=str,
)
def test_a_nested_field_comes_as_a_table_or_as_json(client: TestClient, name: str, table: str, body: Any) -> None:
    others = {f"body.{field}": str(value) for field, value in body.items() if not isinstance(value, list | dict)}
    found = send(client, f"/en/calculators/{name}", table, "a.csv", **others)
    assert found.status_code == 303, Page(found.text).errors
    shown = client.get(f"/api/{name}?" + urlsplit(found.headers["location"]).query).json()
    posted = client.post(f"/api/{name}", json=body).json()
    assert {field: shown[field] for field in posted} == posted
    header = table.partition("\n")[0].replace(";", ",").split(",")
    told = client.get(f"/en/calculators/{name}").text
    assert any(set(header) <= set(one.split(",")) for one in re.findall(r"<code>([\w,]+)</code>", told))


UNREADABLE = {
    "metric_ledger": {
        "rank,batch,n\n0,0,2\n0,2,1\n": "rank 0, batch 1",
        "rank,n,loss\n0,2,high\n": "line 2, column 3",
        "rank,n,perplexity\n0,2,1\n": "known are columns of rank,n,batch",
    },
    "loss_terms": {
        "term,rank,count,sum,coefficient\nce,0,2,1,1\nce,1,4,3,2\n": "several coefficients",
    },
    "pipeline_schedule": {
        "call,part\n0,\n": "blank part in call 0",
    },
    "mesh_ledger": {
        "class,square\ndense,1\ndense,2\n": "“dense” 2 times",
    },
    "rl_weights": {
        "rank,microstep,length,group\n0,0,1,0\n9999,9999,1,0\n": "more than 1,000,000 cells",
        "rank,length,group,group\n0,1,0,0\n": "known are columns of rank,length,group",
    },
}
"""Tables of nested fields, with words of what is said of them."""


@pytest.mark.parametrize(
    ("name", "table", "words"), [(name, *one) for name, tables in UNREADABLE.items() for one in tables.items()]
)
def test_a_table_for_a_nested_field_that_cannot_be_read_says_where(
    client: TestClient, name: str, table: str, words: str
) -> None:
    found = send(client, f"/en/calculators/{name}", table, "a.csv")
    assert found.status_code == 422
    assert words in found.text
    assert "file" in Page(found.text).errors


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rank,microstep,n,g\n0,0,2,1\n1,0,x,1\n", "line 3, column 3"),
        ("rank,microstep,n,g\n0,0,2,1\n1,0,3\n", "line 3 has 3 cells"),
        ("rank,microstep,n,g\n0,0,2,1\n0,0,3,1\n", "rank 0, microstep 1"),
        ("rank,microstep,n,g\n0,0,2,1\n2,0,3,1\n", "no line for rank 1"),
        ("rank,microstep,n,g\n5,0,2,1\n", "from 5"),
        ("tokens,what\n1,2\n", "known are columns of rank,microstep,n,g,loss"),
        ("1,2\n3,four\n", "line 2, column 2"),
        ("", "is empty"),
        ("{not json", "is not JSON"),
        ("[1, 2]", "must hold a JSON object"),
        ('{"cases": []}', "holds no cases"),
    ],
)
def test_a_file_that_cannot_be_read_says_where(client: TestClient, text: str, words: str) -> None:
    found = _ledger(client, text, **{"body.n": "2;8", "body.g": "-2;1"})
    page = Page(found.text)
    assert found.status_code == 422
    assert words in found.text
    assert "file" in page.errors
    assert page.texts["body.n"].strip() == "2;8"


def test_bytes_that_are_no_text_are_refused_in_both_languages(client: TestClient) -> None:
    for lang, words in (("zh", "不是 UTF-8"), ("en", "not UTF-8")):
        found = send(client, f"/{lang}/calculators/replica_ledger", b"\xff\xfe\x00", "a.csv")
        assert found.status_code == 422
        assert words in found.text


def test_a_million_cells_come_as_a_table_and_are_not_sent_back(client: TestClient) -> None:
    ranks, steps = 1_000, 1_000
    numbers = random.Random(7)
    counts = [numbers.randrange(1, 100) for _ in range(ranks)]
    gradients = [numbers.randrange(-8, 9) for _ in range(steps)]
    lines = [f"{r},{k},{counts[r]},{gradients[k]}" for r in range(ranks) for k in range(steps)]
    lines.reverse()
    found = send(client, "/en/calculators/replica_ledger", "rank,microstep,n,g\n" + "\n".join(lines), "a.csv")
    page = Page(found.text)
    assert found.status_code == 200
    assert float(page.values["N"]) == steps * sum(counts)
    mean = sum(gradients) / steps  # every rank has the same gradients
    assert float(page.values["reference.grad"]) == pytest.approx(mean, rel=1e-12)
    wrong = sum(g for g in gradients) / steps / ranks
    assert float(page.values["schemes.one_over_N_then_ddp_mean.grad"]) == pytest.approx(wrong, rel=1e-12)
    assert "data-withheld" in page.attributes
    assert len(found.text) < 300_000


def test_a_state_too_long_for_a_link_says_so(client: TestClient) -> None:
    row = ",".join("123456789" for _ in range(1_000))
    found = send(client, "/en/calculators/replica_ledger", json.dumps({"n": [row.split(",")], "g": [row.split(",")]}))
    page = Page(found.text)
    assert found.status_code == 200
    assert "data-too-long" in page.attributes
    assert page.texts["body.n"].strip() == row
    short = client.get("/en/calculators/replica_ledger?body.n=1&body.g=1")
    assert "data-too-long" not in Page(short.text).attributes


# ---- all numbers and the program


@pytest.mark.parametrize("name", NAMES)
def test_all_numbers_and_the_program_are_in_the_page_and_by_themselves(client: TestClient, name: str) -> None:
    whole = client.get(f"/en/calculators/{name}").text
    alone = client.get(f"/en/calculators/{name}/more")
    assert alone.status_code == 200
    assert alone.text.strip() in whole
    assert 'data-more="fields"' in alone.text
    page = Page(alone.text)
    answer = client.get(f"/api/{name}").json()
    listed = {leaf.path: leaf.value for leaf in leaves(answer)}
    for path, text in page.values.items():
        assert text == (listed[path] if isinstance(listed[path], str) else json.dumps(listed[path]))


def test_more_of_a_refused_state_is_its_errors(client: TestClient) -> None:
    found = client.post("/en/calculators/replica_ledger/more", data={"a": "x"})
    assert found.status_code == 422
    assert "a" in Page(found.text).errors


def test_the_way_to_the_whole_body_keeps_the_panels_state(client: TestClient) -> None:
    found = client.get("/zh/calculators/replica_ledger?as=general&a=5&b=1")
    assert found.status_code == 303
    query = urlsplit(found.headers["location"]).query
    assert client.get(f"/api/replica_ledger?{query}").json() == client.get("/api/replica_ledger?a=5&b=1").json()
    refused = client.get("/zh/calculators/replica_ledger?as=general&a=x")
    assert refused.headers["location"] == "/zh/calculators/replica_ledger?a=x"


def test_counts_may_have_a_fraction_only_where_they_are_weights_and_the_page_says_so(client: TestClient) -> None:
    page = client.get("/en/calculators/replica_ledger?counts=2.5,3;8,0&gradients=-2,1;1,0")
    assert page.status_code == 200
    assert "n may have a fraction: then it is a sum of token weights" in page.text
    for name, field in (("token_budget", "lengths"), ("batch_noise", "lengths"), ("framework_recipe", "counts")):
        refused = client.get(f"/api/{name}?{field}=2.5,3")
        assert refused.status_code == 422
        assert [error["loc"][-1] for error in refused.json()["detail"]] == [field]
