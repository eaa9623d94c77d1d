"""What holds of every calculator, by the tables that stand in each one's own test.

REFUSED_FIELDS   by the dotted path of the refusal: texts for its field, or all fields that together are refused
REFUSED_BODIES   bodies that are refused, each with the dotted path of the refusal
SHOWN            states of the page, as addresses write them
VERDICTS         fields of the panel, and words of the English verdict

Behind a refused text, fields or body may stand parts of the code or of the English message.
"""

import importlib
import re
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from starlette.testclient import TestClient

from samestep.app.calculators import registry
from samestep.app.contract.errors import FieldError
from samestep.app.contract.languages import LANGUAGES
from tests.kit import Asked, Body, text_of, tree

CALCULATORS = sorted(registry())
TESTS = {name: importlib.import_module(f"tests.calculators.test_{name}") for name in CALCULATORS}


def entries(table: str) -> list[Any]:
    """A calculator and an entry of its table each, of all that have one."""
    listed = {name: getattr(TESTS[name], table, []) for name in CALCULATORS}
    return [pytest.param(name, entry, id=f"{name}-{i}") for name in CALCULATORS for i, entry in enumerate(listed[name])]


def refused_fields() -> Iterator[Any]:
    """A calculator, fields, the place of their refusal, and what is said there."""
    for name in CALCULATORS:
        for place, refused in getattr(TESTS[name], "REFUSED_FIELDS", {}).items():
            for i, one in enumerate(refused):
                given, *words = one if isinstance(one, tuple) else (one,)
                fields = given if isinstance(given, dict) else {place.split(".")[0]: given}
                yield pytest.param(name, fields, place, words, id=f"{name}-{place}-{i}")


def assert_told(error: FieldError, place: str, words: Sequence[str]) -> None:
    assert ".".join(map(str, error.path)) == place
    assert all(word in f"{error.code}: {error.en}" for word in words)
    assert error.en
    assert error.zh
    assert error.zh != error.en


@pytest.mark.parametrize("name", CALCULATORS)
def test_every_calculator_says_what_it_refuses(name: str) -> None:
    assert {"REFUSED_FIELDS", "REFUSED_BODIES"} & vars(TESTS[name]).keys()


@pytest.mark.parametrize(("name", "fields", "place", "words"), [*refused_fields()])
def test_fields_that_cannot_be_used_are_refused_at_their_place(
    name: str, fields: Body, place: str, words: list[str]
) -> None:
    assert_told(Asked(name).view_refusal(**fields), place, words)


@pytest.mark.parametrize(("name", "entry"), entries("REFUSED_BODIES"))
def test_a_body_that_cannot_be_used_is_refused_at_its_place(name: str, entry: tuple[Body, *tuple[str, ...]]) -> None:
    body, place, *words = entry
    assert_told(Asked(name).refusal(body), place, words)


@pytest.mark.parametrize("lang", LANGUAGES)
@pytest.mark.parametrize(("name", "state"), entries("SHOWN"))
def test_every_kind_of_state_is_shown_with_a_verdict_or_its_errors(
    client: TestClient, name: str, state: str, lang: str
) -> None:
    page = client.get(f"/{lang}/calculators/{name}?{state}")
    assert page.status_code in (200, 422)
    assert page.text.count("data-verdict") == (1 if page.status_code == 200 else 0)
    assert ("data-error-for" in page.text) is (page.status_code == 422)
    assert not re.search(r">\s*(None|nan|inf)\s*<", page.text)


@pytest.mark.parametrize(("name", "entry"), entries("VERDICTS"))
def test_the_verdict_of_a_state(client: TestClient, name: str, entry: tuple[Body, str]) -> None:
    fields, words = entry
    page = client.get(f"/en/calculators/{name}/result", params=fields)
    (verdict,) = [one for one in tree(page.text).iter("p") if one.get("data-verdict") is not None]
    assert words in text_of(verdict)
