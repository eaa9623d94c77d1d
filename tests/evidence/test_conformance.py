"""The matrix of the conformance experiment: rows as lines, colours, filters, exports; and what its pages declare."""

import csv
import io
import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, cast

import pytest
from starlette.testclient import TestClient

from samestep.app.evidence.bags import ConformanceRow, Library, Result
from samestep.app.evidence.conformance import Matrix, as_csv, as_json, family, glyph, load_texts
from tests.kit import CONTENT, the_book

TEXTS = load_texts(CONTENT)
MATRIX = Matrix(Library(CONTENT / "evidence").bag("conformance").result)
LANGS = ("zh", "en")


def row(framework: str, setting: str, scenario: str, verdict: str, **more: Any) -> ConformanceRow:
    made = {
        "framework": framework,
        "setting": setting,
        "version": "1.0",
        "scenario": scenario,
        "case": scenario,
        "kind": "coefficients",
        "verdict": verdict,
        "coefficients": [[0.25], [None]],
        "residual": 0.0,
        "values": {},
        "met": True,
    }
    return cast(ConformanceRow, made | more)


def matrix_of(*rows: ConformanceRow) -> Matrix:
    cases = {row["scenario"]: {"zh": row["scenario"], "en": row["scenario"]} for row in rows}
    return Matrix(cast(Result, {"rows": list(rows), "cases": cases}))


TWO = matrix_of(
    row("one", "default", "A", "global_token_mean"),
    row("one", "default", "B", "microbatch_equal*1/K"),
    row("two", "default", "A", "undefined"),
)


@pytest.mark.parametrize(
    ("verdict", "colour"),
    [
        ("global_token_mean", "right"),
        ("global_token_mean*P", "wrong"),
        ("microbatch_equal", "wrong"),
        ("undefined", "undefined"),
        ("not_measured", "undefined"),
    ],
)
def test_only_the_objective_itself_has_its_colour(verdict: str, colour: str) -> None:
    assert family(verdict) == colour


def test_rows_of_one_setting_are_one_line() -> None:
    assert [(line.framework, list(line.cells)) for line in TWO.lines] == [("one", ["A", "B"]), ("two", ["A"])]


def test_a_filter_keeps_the_lines_that_have_such_a_measurement() -> None:
    assert [line.framework for line in TWO.chosen(framework="two")] == ["two"]
    assert [line.framework for line in TWO.chosen(verdict="microbatch_equal")] == ["one"]
    assert [list(line.cells) for line in TWO.chosen(scenario="A")] == [["A"], ["A"]]
    assert TWO.chosen(framework="two", verdict="microbatch_equal") == []


def test_csv_has_a_row_for_every_coefficient_and_blanks_where_there_is_none() -> None:
    rows = list(csv.DictReader(io.StringIO(as_csv(TWO.chosen(framework="two")))))
    assert [(r["rank"], r["microbatch"], r["coefficient"]) for r in rows] == [("0", "0", "0.25"), ("1", "0", "")]


def test_json_gives_the_published_rows_as_they_are() -> None:
    assert json.loads(as_json(MATRIX.lines)) == sorted_like(MATRIX.result["rows"], MATRIX)


def sorted_like(rows: Any, matrix: Matrix) -> list[Any]:
    by_id = {row["id"]: row for row in rows}
    return [by_id[cell.row["id"]] for line in matrix.lines for cell in line.cells.values()]


def test_every_published_framework_and_verdict_is_declared_in_words() -> None:
    assert set(MATRIX.frameworks) <= set(TEXTS.framework)
    assert set(MATRIX.verdicts) <= set(TEXTS.verdict)


@pytest.fixture(scope="module", params=LANGS)
def pages(request: pytest.FixtureRequest, client: TestClient) -> dict[str, str]:
    """The matrix, and the page of every framework, in one language."""
    lang = request.param
    there = {name: client.get(f"/{lang}/conformance/{name}").text for name in TEXTS.framework}
    return {"": client.get(f"/{lang}/conformance").text, "lang": lang, **there}


def test_the_pages_of_the_frameworks_show_every_published_coefficient(pages: dict[str, str]) -> None:
    for line in MATRIX.lines:
        for cell in line.of("coefficients").values():
            each = cell.row["values"].get("sequences")
            for path, value in leaves(each, "values.sequences") if each else leaves(cell.row["coefficients"] or []):
                shown = f'data-field="{cell.place}.{path}"'
                assert shown in pages[line.framework]
                assert value is None or f'{shown} data-value="{value!r}"' in pages[line.framework]


def leaves(value: Any, path: str = "coefficients") -> Iterator[tuple[str, float | None]]:
    """Every number of nested lists, with its dotted path."""
    if isinstance(value, list):
        for i, each in enumerate(value):
            yield from leaves(each, f"{path}.{i}")
    else:
        yield path, value


def test_every_measurement_of_the_matrix_is_a_sign_that_leads_to_its_numbers(pages: dict[str, str]) -> None:
    signs = Counter(re.findall(r'<a class="is-\w+" href="([^"]+)"', pages[""]))
    assert signs.total() == len(MATRIX.result["rows"])
    for target in signs:
        place, _, anchor = target.partition("#")
        assert f'id="{anchor}"' in pages[place.rpartition("/")[2]], target


def test_the_whole_matrix_fits_in_120_kilobytes(pages: dict[str, str]) -> None:
    assert len(pages[""].encode()) <= 120_000


def test_every_verdict_has_a_sign_of_its_own() -> None:
    signs = [glyph(verdict) for verdict in TEXTS.verdict]
    assert len(set(signs)) == len(signs) - 1  # replicas that differ have none of their own
    assert glyph("microbatch_equal*P") == "▦×P"
    assert glyph("replica_equal | microbatch_equal") == "◐▦"


def test_every_framework_stands_in_one_group_and_has_its_words() -> None:
    grouped = [name for group in TEXTS.group for name in group.frameworks]
    assert sorted(grouped) == sorted(TEXTS.framework)
    labels = {label for row in MATRIX.result["rows"] for label in cast(ConformanceRow, row)["labels"]}
    assert labels <= set(TEXTS.label)


def test_a_setting_of_several_releases_is_told_in_their_order() -> None:
    dated = matrix_of(
        row("one", "default", "A", "global_token_mean", version="1.10.0"),
        row("one", "default", "A", "replica_equal", version="1.9.2"),
        row("one", "other", "A", "replica_equal", version="1.9.2"),
    )
    assert {name: [line.version for line in lines] for name, lines in dated.history("one").items()} == {
        "default": ["1.9.2", "1.10.0"]
    }


@pytest.mark.parametrize("lang", LANGS)
@pytest.mark.parametrize("name", list(TEXTS.framework))
def test_every_framework_has_its_page_with_recipe_and_surprises(client: TestClient, lang: str, name: str) -> None:
    answer = client.get(f"/{lang}/conformance/{name}")
    assert answer.status_code == 200
    assert f"--framework {name}" in answer.text
    for surprise in TEXTS.framework[name].surprise:
        assert surprise.report in answer.text


def test_an_unknown_framework_is_not_found(client: TestClient) -> None:
    assert client.get("/en/conformance/nothing").status_code == 404


@pytest.mark.parametrize("lang", LANGS)
def test_surprises_lead_to_sections_that_exist(lang: str) -> None:
    paths = {section.path for section in the_book().sections() if section.lang == lang}
    named = {surprise.chapter for text in TEXTS.framework.values() for surprise in text.surprise if surprise.chapter}
    assert {f"/{lang}/{chapter}" for chapter in named} <= paths


def test_exports_follow_the_filters(client: TestClient) -> None:
    answer = client.get("/en/conformance?framework=torch_ddp&scenario=B&format=json").json()
    assert {(row["framework"], row["scenario"]) for row in answer} == {("torch_ddp", "B")}
    lines = client.get("/en/conformance?framework=torch_ddp&scenario=B&format=csv").text.splitlines()
    assert len(lines) == 1 + 4 * len(answer)


def test_a_filter_that_matches_nothing_says_so(client: TestClient) -> None:
    assert "There is no such measurement" in client.get("/en/conformance?framework=torch_ddp&verdict=aborts").text


@pytest.mark.parametrize("lang", LANGS)
def test_upstream_faults_are_shown_with_both_releases(client: TestClient, lang: str) -> None:
    page = client.get(f"/{lang}/conformance").text
    assert MATRIX.faults
    for fault in MATRIX.faults:
        assert fault.url in page
        assert fault.before.row["version"] != fault.after.row["version"]
        assert fault.before.row["verdict"] != fault.after.row["verdict"] or fault.before.row["verdict"] == "other"
        assert fault.before.row["max_abs_difference"] != fault.after.row["max_abs_difference"]
