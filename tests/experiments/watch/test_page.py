"""The report as a page: valid, whole by itself, every number of the JSON in it, and links that the wiki answers."""

import json
import re
from collections.abc import Iterator
from urllib.parse import urlsplit
from xml.etree.ElementTree import Element

import html5lib
import pytest
from starlette.testclient import TestClient

from samestep.experiments.audit.telling.page import WIKI
from samestep.experiments.watch.telling import causes
from samestep.experiments.watch.telling.page import page
from samestep.experiments.watch.telling.printing import Language, printed
from samestep.experiments.watch.telling.report import as_json
from tests.experiments.watch.conftest import Loops

PAGES = ("ddp_mean", "ddp_global", "ddp_other_terms", "hand_forgets_head", "loss_unseen", "refused_fsdp1")
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module", params=["zh", "en"])
def language(request: pytest.FixtureRequest) -> Language:
    chosen: Language = request.param
    return chosen


def parsed(html: str) -> Element:
    root: Element = html5lib.HTMLParser(strict=True, namespaceHTMLElements=False).parse(html)
    return root


def numbers(value: object, path: str = "") -> Iterator[tuple[str, float]]:
    if isinstance(value, dict):
        for key, each in value.items():
            yield from numbers(each, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for i, each in enumerate(value):
            yield from numbers(each, f"{path}.{i}")
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield path, value


@pytest.mark.parametrize("name", PAGES)
def test_every_number_of_the_updates_is_on_the_page_in_full(loops: Loops, language: Language, name: str) -> None:
    report = loops.report(name)
    root = parsed(page(report, language))
    fields = [each.attrib for each in root.iter() if "data-field" in each.attrib]
    shown = {each["data-field"]: each.get("data-value") for each in fields}
    wanted = dict(numbers(json.loads(as_json(report))["updates"], "updates"))
    wanted = {path: value for path, value in wanted.items() if not re.search(r"\.(index|terms\.\d+\.cells\..*)$", path)}
    assert {path: shown.get(path) for path in wanted} == {path: repr(value) for path, value in wanted.items()}


@pytest.mark.parametrize("name", PAGES)
def test_it_needs_no_other_file_and_no_script(loops: Loops, name: str) -> None:
    root = parsed(page(loops.report(name), "en"))
    assert not {each.tag for each in root.iter()} & {"script", "link", "img", "iframe", "object"}
    assert not any("src" in each.attrib for each in root.iter())


def test_cells_are_drawn_as_bars_for_every_update(loops: Loops) -> None:
    root = parsed(page(loops.report("ddp_mean"), "en"))
    figures = [each for each in root.iter() if each.tag == f"{SVG}svg"]
    assert [len([r for r in each.iter() if r.tag == f"{SVG}rect"]) for each in figures] == [12, 12]


@pytest.mark.parametrize("name", [name for name in PAGES if name != "refused_fsdp1"])
def test_every_link_leads_to_a_page_that_takes_its_state(
    loops: Loops, language: Language, client: TestClient, name: str
) -> None:
    root = parsed(page(loops.report(name), language))
    for address in (each.attrib["href"] for each in root.iter("a")):
        assert address.startswith(WIKI)
        answers(client, address.removeprefix(WIKI))


@pytest.mark.parametrize("code", causes.OWN)
def test_every_cause_of_ones_own_has_its_section_and_calculator(client: TestClient, code: str) -> None:
    for lang in ("zh", "en"):
        answers(client, f"/{lang}/{causes.OWN[code].chapter}")
        answers(client, f"/{lang}/calculators/{causes.OWN[code].calculator}")


def answers(client: TestClient, address: str) -> None:
    parts = urlsplit(address)
    answer = client.get(f"{parts.path}?{parts.query}" if parts.query else parts.path)
    assert answer.status_code == 200, address
    assert not parts.fragment or f'id="{parts.fragment}"' in answer.text, address
    assert "aria-invalid" not in answer.text, address


def test_every_text_is_there_in_both_languages_with_the_same_places_to_fill() -> None:
    groups = (causes.REASONS, causes.EMPTY, causes.REFUSALS, causes.NOTES, causes.OBJECTIVES)
    for text in (each for group in groups for each in group.values()):
        fields = [set(re.findall(r"\{(\w+)", text[language])) for language in ("en", "zh")]
        assert fields[0] == fields[1], text


def test_the_printed_report_says_the_cause_first_and_the_cells_after_it(loops: Loops) -> None:
    lines = printed(loops.report("ddp_mean"), "en").splitlines()
    assert lines[0].startswith("scenarios.py: TOKENS DO NOT WEIGH")
    assert lines[3].strip().startswith("Every microbatch counts the same")
    rows = [line.split() for line in lines if re.match(r"  [01]  ", line)]
    assert rows[:2] == [["0", "0", "14", "0.0238095", "0.5", "0.0119048", "0.6905"],
                        ["0", "1", "2", "0.166667", "0.5", "0.0833333", "4.8333"]]  # fmt: skip
