"""The guided start: every way leads to an instrument in a state that computes, and that shows what was promised."""

import json

import pytest
from starlette.testclient import TestClient

from samestep.app.calculators import registry
from samestep.app.contract.paths import value_at
from samestep.app.instruments.answers import get
from samestep.app.instruments.start import Answer, load_guide
from tests.kit import CONTENT, the_book

GUIDE = load_guide(CONTENT)
ANSWERS = [(symptom.id, answer) for symptom in GUIDE.symptom for answer in symptom.answer]
named = pytest.mark.parametrize("answer", [answer for _, answer in ANSWERS], ids=[f"{s}: {a.en}" for s, a in ANSWERS])


@named
def test_an_answer_opens_an_instrument_that_computes(answer: Answer) -> None:
    assert get(answer.calculator, answer.state.removeprefix("?")).status == 200


@named
def test_the_instrument_shows_what_the_start_expects(answer: Answer) -> None:
    if answer.expect is None:
        return
    data = json.loads(get(answer.calculator, answer.state.removeprefix("?")).body)
    shown = value_at(data, answer.expect.field)
    assert (shown if isinstance(shown, str) else json.dumps(shown).removesuffix(".0")) == answer.expect.value


@named
def test_what_is_asked_is_filled_in_and_labelled(answer: Answer) -> None:
    fields = set(registry()[answer.calculator].query.model_fields)
    assert set(answer.fields) <= fields
    assert set(answer.ask) <= set(answer.fields)
    assert set(answer.ask) <= set(GUIDE.field)


@pytest.mark.parametrize("lang", ["zh", "en"])
def test_every_answer_names_a_section_that_exists(lang: str) -> None:
    paths = {section.path for section in the_book().sections() if section.lang == lang}
    assert {f"/{lang}/{answer.chapter}" for _, answer in ANSWERS} <= paths


def test_every_calculator_is_reached_from_some_symptom() -> None:
    assert {answer.calculator for _, answer in ANSWERS} == set(registry())


@pytest.mark.parametrize("lang", ["zh", "en"])
def test_the_page_holds_every_symptom_and_a_way_on(client: TestClient, lang: str) -> None:
    page = client.get(f"/{lang}/start").text
    for symptom in GUIDE.symptom:
        assert f'id="{symptom.id}"' in page
    for _, answer in ANSWERS:
        assert f"/{lang}/calculators/{answer.calculator}" in page
