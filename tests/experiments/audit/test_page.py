"""The report as a page: valid, whole by itself, every number of the JSON in it, and links that the wiki answers."""

import argparse
import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit
from xml.etree.ElementTree import Element

import html5lib
import pytest
from starlette.testclient import TestClient

from samestep.app.contract.paths import leaves
from samestep.experiments.audit import Report, Settings
from samestep.experiments.audit.command import add_to
from samestep.experiments.audit.failure import Failure
from samestep.experiments.audit.running import plans
from samestep.experiments.audit.telling.causes import CAUSES
from samestep.experiments.audit.telling.page import WIKI, command, page, write
from samestep.experiments.audit.telling.printing import Language
from samestep.experiments.audit.telling.report import as_json, failed
from samestep.experiments.registry import ROOT
from tests.experiments.audit.asked import ask

RIGHT, WRONG, CROSS, NORM = "global_count", "rank_means", "contrastive_detached", "clip_before_reduction"
WALKTHROUGH = ROOT / "experiments" / "audit" / "walkthrough"
FILES = ROOT / "tests" / "experiments" / "audit" / "files"
REPORTS = ask(
    {
        RIGHT: WALKTHROUGH / f"{RIGHT}.py",
        WRONG: WALKTHROUGH / f"{WRONG}.py",
        CROSS: FILES / f"{CROSS}.py",
        NORM: FILES / f"{NORM}.py",
    }
)
SVG = "{http://www.w3.org/2000/svg}"
PLACEHOLDERS = {
    "P": 2,
    "K": 3,
    "counts": "8,12,11;9,13,7",
    "gradients": "1,0,0;0,0,0",
    "reference_norm": "0.5",
    "observed_norm": "0.25",
    "norm_rows": "0.3;0.4",
}


@pytest.fixture(scope="module")
def reports() -> Mapping[str, Report]:
    """Four files, each under a plan with unequal cells."""
    return REPORTS


@pytest.fixture(scope="module", params=["zh", "en"])
def language(request: pytest.FixtureRequest) -> Language:
    chosen: Language = request.param
    return chosen


@pytest.fixture(scope="module")
def roots(reports: Mapping[str, Report], language: Language) -> Mapping[str, Element]:
    """The pages, parsed: a parse error is an exception."""
    failure = failed(Path("broken.py"), Failure("ValueError: <b> & more", 1, "step()", "Traceback …\n  a < b", "log"))
    return {name: parsed(page(report, language)) for name, report in {**reports, "broken": failure}.items()}


def parsed(html: str) -> Element:
    root: Element = html5lib.HTMLParser(strict=True, namespaceHTMLElements=False).parse(html)
    return root


def text_of(element: Element) -> str:
    return " ".join("".join(element.itertext()).split())


def fields(root: Element) -> dict[str, str | None]:
    """What the page says at every path of the JSON report."""
    found = [each for each in root.iter() if "data-field" in each.attrib]
    return {each.attrib["data-field"]: each.attrib.get("data-value") for each in found}


def numbers(report: Report) -> Iterator[tuple[str, float]]:
    """Every number of the JSON report by its path; `stages` and `weights` at its front repeat its worst plan's."""
    for leaf in leaves(json.loads(as_json(report))):
        if isinstance(leaf.value, int | float) and not re.match(r"(stages|weights)\.", leaf.path):
            yield leaf.path, leaf.value


def links(root: Element) -> list[str]:
    return [each.attrib["href"] for each in root.iter("a")]


@pytest.mark.parametrize("name", [RIGHT, WRONG, CROSS, NORM])
def test_every_number_of_the_json_report_is_on_the_page_in_full(
    reports: Mapping[str, Report], roots: Mapping[str, Element], name: str
) -> None:
    shown = fields(roots[name])
    wanted = dict(numbers(reports[name]))
    assert len(wanted) > 50
    assert {path: shown.get(path) for path in wanted} == {path: repr(value) for path, value in wanted.items()}


def test_the_front_of_the_json_repeats_its_worst_plan(reports: Mapping[str, Report]) -> None:
    value = json.loads(as_json(reports[WRONG]))
    assert value["stages"] == value["plans"][0]["stages"]
    assert value["weights"] == value["plans"][0]["finding"]["weights"]["observed"]


def test_it_needs_no_other_file_and_no_script(roots: Mapping[str, Element]) -> None:
    for root in roots.values():
        assert not {each.tag for each in root.iter()} & {"script", "link", "img", "iframe", "object"}
        assert not any("src" in each.attrib for each in root.iter())
        (style,) = root.iter("style")
        assert "--reference" in (style.text or "")
        assert "url(" not in (style.text or "")


def test_the_verdict_comes_first_and_only_a_wrong_file_is_told_where_it_differs(
    roots: Mapping[str, Element], language: Language
) -> None:
    gradient = {"zh": "梯度", "en": "gradient"}[language]
    for name, verdict in ((RIGHT, "same"), (WRONG, "different"), ("broken", "error")):
        main = next(roots[name].iter("main"))
        line = main[[child.tag for child in main].index("h1") + 1]
        assert line.attrib["data-value"] == verdict
        assert (gradient in text_of(line)) == (verdict == "different")
    assert all(root.attrib["lang"] == language for root in roots.values())


def test_one_stage_is_marked_as_the_first_difference_and_later_ones_follow_from_it(
    roots: Mapping[str, Element],
) -> None:
    for name, stage, following in ((RIGHT, None, 0), (WRONG, "gradient", 3), (NORM, "norm", 3)):
        marked = [row for row in roots[name].iter("tr") if row.attrib.get("class") == "selected"]
        found = [next(row.iter("data")).attrib["data-value"] for row in marked]
        assert found == ([stage] if stage else [])
        outcomes = [text_of(row) for row in roots[name].iter("tr")]
        assert sum("follows from" in each or "而来" in each for each in outcomes) == following


def test_weights_are_drawn_only_for_a_re_weighting(roots: Mapping[str, Element]) -> None:
    drawn = {name: sum(each.tag == f"{SVG}svg" for each in root.iter()) for name, root in roots.items()}
    assert drawn == {RIGHT: 0, WRONG: 1, CROSS: 0, NORM: 0, "broken": 0}


def test_of_a_detached_gather_it_says_which_parameters_are_right(roots: Mapping[str, Element]) -> None:
    rows = [[text_of(cell) for cell in row] for row in roots[CROSS].iter("tr")]
    outcome = {row[0]: row[1] in ("same", "相同") for row in rows if row[0].endswith(".weight")}
    assert outcome == {"query.weight": True, "document.weight": False}


def test_every_link_leads_into_the_wiki(roots: Mapping[str, Element], client: TestClient) -> None:
    found = {address for root in roots.values() for address in links(root)}
    assert len(found) > 5
    for address in found:
        assert address.startswith(WIKI), address
        answers(client, address.removeprefix(WIKI))


@pytest.mark.parametrize("code", sorted(CAUSES))
def test_every_cause_has_its_section_and_a_calculator_that_takes_its_state(client: TestClient, code: str) -> None:
    cause = CAUSES[code]
    for lang in ("zh", "en"):
        answers(client, f"/{lang}/{cause.chapter}")
        answers(client, f"/{lang}/calculators/{cause.calculator.format(**PLACEHOLDERS)}")


def answers(client: TestClient, address: str) -> None:
    """The page exists, has the anchor, and refuses no input."""
    parts = urlsplit(address)
    answer = client.get(f"{parts.path}?{parts.query}" if parts.query else parts.path)
    assert answer.status_code == 200, address
    assert not parts.fragment or f'id="{parts.fragment}"' in answer.text, address
    assert "aria-invalid" not in answer.text, address


def test_links_begin_where_one_says(
    reports: Mapping[str, Report], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "report.html"
    monkeypatch.setenv("SAMESTEP_BASE_URL", "https://example.org/wiki")
    for given, begin in ((None, "https://example.org/wiki/zh/"), ("https://example.com/", "https://example.com/zh/")):
        write(reports[WRONG], place, "zh", given)
        assert all(address.startswith(begin) for address in links(parsed(place.read_text("utf-8"))))


@pytest.mark.parametrize(
    "settings",
    [Settings(), Settings(3, 2, "all", dtype="float32", atol=1e-4, timeout=7.5)],
    ids=["usual", "everything"],
)
def test_the_command_on_the_page_asks_for_the_same_audit(reports: Mapping[str, Report], settings: Settings) -> None:
    shown = command(replace(reports[WRONG], settings=settings))
    assert shown is not None
    parser = argparse.ArgumentParser()
    add_to(parser.add_subparsers())
    options = parser.parse_args(shlex.split(shown)[1:])
    assert options.file == Path("rank_means.py")
    assert {name: getattr(options, name) for name in vars(settings)} == vars(settings)


def test_plans_of_ones_own_have_no_command(reports: Mapping[str, Report]) -> None:
    own = Settings(plan=plans.named("ragged", 60, 2, 3))
    assert command(replace(reports[WRONG], settings=own)) is None


def test_a_failure_shows_the_readers_own_traceback_as_text(roots: Mapping[str, Element]) -> None:
    shown = text_of(next(roots["broken"].iter("main")))
    assert "ValueError: <b> & more" in shown
    assert "a < b" in shown
    assert fields(roots["broken"])["failure.rank"] == "1"
