"""The table of symbols: what stands in it is in the formulas around an instrument, and on the instrument."""

import re
import unicodedata
from collections.abc import Iterator
from xml.etree import ElementTree

import pytest
from starlette.testclient import TestClient

from samestep.app.calculators import registry
from samestep.app.contract.languages import LANGUAGES
from samestep.app.instruments.symbols import symbols_of
from tests.kit import the_book

FORMULA = re.compile(r"<math.*?</math>", re.DOTALL)


def plain(node: ElementTree.Element) -> str:
    text = unicodedata.normalize("NFKC", "".join(node.itertext()))
    return "".join(letter for letter in text if unicodedata.category(letter)[0] in "LN" or letter in "*⋆")


def names(node: ElementTree.Element) -> Iterator[str]:
    """The symbols of a formula by the names that the page's script gives them."""
    kind, parts = node.tag.rpartition("}")[2], list(node)
    if kind == "mi":
        yield plain(node)
    elif kind in ("msub", "msubsup") and len(plain(parts[0])) < 3:
        yield f"{plain(parts[0])}_{plain(parts[1])}"
    elif kind == "mover" and node.get("accent"):
        yield plain(parts[0]) + "".join(parts[1].itertext()).replace("ˆ", "^")
    else:
        for part in parts:
            yield from names(part)


def symbols_around(name: str, lang: str) -> set[str]:
    """What the formulas of the chapters with this calculator are made of."""
    carriers = [chapter for chapter in the_book().chapters[lang] if name in {one.name for one in chapter.calculators}]
    pieces = "".join(piece for chapter in carriers for piece in chapter.pieces if isinstance(piece, str))
    return {found for formula in FORMULA.findall(pieces) for found in names(ElementTree.fromstring(formula))}


@pytest.mark.parametrize("name", registry())
def test_every_symbol_of_an_instrument_is_in_a_formula_and_on_the_instrument(client: TestClient, name: str) -> None:
    symbols = symbols_of(name)
    assert symbols
    for lang in LANGUAGES:
        around = symbols_around(name, lang)
        assert [one.names for one in symbols if not around & set(one.names)] == []
    page = client.get(f"/en/calculators/{name}").text
    there = set(re.findall(rf'(?:id="{name}-|data-field=")([^"]+)"', page))
    for one in symbols:
        shown = re.compile("|".join(place.replace(".", r"\.").replace("*", "[^.]+") for place in one.places))
        assert any(shown.fullmatch(place) for place in there), one
    marks = {mark for found in re.findall(r'data-symbol="([^"]+)"', page) for mark in found.split()}
    assert marks <= {mark for one in symbols for mark in one.names}
