"""Preview cards: what the page shows is what they show, in both languages, at a size that previews take."""

import json
import struct
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from samestep.app.calculators import registry
from samestep.app.cards.answer import Shown, shown_in
from samestep.app.cards.drawing import Card, png_of, svg_of
from samestep.app.cards.fonts import Fonts, card_fonts
from samestep.app.cards.style import figure_style, variables
from samestep.app.paths import folder
from samestep.app.rendering.packaged_fonts import source_font

CSS = folder("static") / "css"
LATIN = Fonts((str(source_font()),), "STIX Two Math", chinese=False)


def size_of(png: bytes) -> tuple[int, int]:
    assert png.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", png[16:24])
    return width, height


def drawn(shown: Shown, fonts: Fonts, lang: str = "zh") -> str:
    return svg_of(Card(lang, "标题" if lang == "zh" else "Title", shown), fonts, figure_style(CSS), variables(CSS))  # type: ignore[arg-type]


@pytest.mark.parametrize("lang", ["zh", "en"])
@pytest.mark.parametrize("name", sorted(registry()))
def test_every_calculators_answer_has_a_verdict_or_numbers_and_its_card_is_svg(
    client: TestClient, name: str, lang: str
) -> None:
    shown = shown_in(client.get(f"/{lang}/calculators/{name}/result").text)
    assert shown.verdict
    assert shown.figure
    root = ElementTree.fromstring(drawn(shown, card_fonts(), lang))
    assert root.get("viewBox") == "0 0 1200 630"


def test_a_card_shows_the_verdict_numbers_and_figure_of_its_state(client: TestClient) -> None:
    shown = shown_in(client.get("/en/calculators/replica_ledger/result?counts=100;900").text)
    assert shown.kind == "other"
    assert "counts as much as 9 of B" in shown.verdict
    assert shown.numbers[0] == ("Right global gradient assumed", "+0.7")
    assert "0.005" in shown.figure


def test_a_figure_that_repeats_the_inputs_is_shown_only_where_there_is_no_other() -> None:
    typed, found = '<svg class="figure" data-typed role="img">1</svg>', '<svg class="figure" role="img">2</svg>'
    assert shown_in(typed + found).figure == found
    assert shown_in(typed).figure == typed


def test_an_english_card_in_a_chinese_font_has_narrow_quotation_marks() -> None:
    shown = Shown("the data set’s “mean”", "other", (), "")
    chinese = Fonts((), "Noto Sans CJK SC", chinese=True)
    english = "".join(ElementTree.fromstring(drawn(shown, chinese, "en")).itertext())
    assert 'the data set\'s "mean"' in english
    assert "“mean”" in drawn(shown, chinese, "zh")


def test_a_card_is_a_picture_of_1200_by_630_and_is_drawn_once(client: TestClient) -> None:
    address = "/zh/calculators/replica_ledger/card.png?a=3&b=9"
    first = client.get(address)
    assert first.headers["content-type"] == "image/png"
    assert size_of(first.content) == (1200, 630)
    assert "max-age" in first.headers["cache-control"]
    assert client.get(address).content == first.content
    assert client.get("/zh/calculators/replica_ledger/card.png?a=3&b=10").content != first.content


@pytest.mark.parametrize("place", ["/en/card.png?a=5&b=7", "/en/parallel-correctness/card.png?replica_ledger.a=5"])
def test_the_shelf_and_chapters_have_cards_of_their_states(client: TestClient, place: str) -> None:
    picture = client.get(place)
    assert size_of(picture.content) == (1200, 630)
    assert picture.content != client.get(place.partition("?")[0]).content


@pytest.mark.parametrize(
    "place", ["/zh/calculators/replica_ledger/card.png?a=x", "/zh/card.png?a=-1", "/zh/none-such/card.png"]
)
def test_a_refused_state_has_no_card(client: TestClient, place: str) -> None:
    assert client.get(place).status_code == 404


def test_without_chinese_glyphs_a_card_leaves_words_out_and_keeps_numbers_and_figure() -> None:
    figure = '<svg class="figure" viewBox="0 0 10 10"><text>正确 0.5</text><rect class="p3"/></svg>'
    shown = Shown("不是同一次更新", "other", (("x", "+0.7"),), figure)
    svg = drawn(shown, LATIN)
    assert not any("\u4e00" <= character <= "\u9fff" for character in svg)
    assert "+0.7" in svg
    assert " 0.5</text>" in svg
    assert size_of(png_of(svg, LATIN)) == (1200, 630)


def test_a_long_verdict_is_cut_with_an_ellipsis_and_stays_within_the_card() -> None:
    svg = drawn(Shown("word " * 200, "same", (), ""), LATIN, "en")
    lines = [text.text or "" for text in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]
    assert sum("word" in line for line in lines) == 3
    assert lines[-2].endswith("…")


@pytest.mark.parametrize("name", ["\x00", "a\x0bb", "\ufffe", "</svg>", "]]>&lt;", "\u202e🔥"])
def test_a_name_that_xml_cannot_hold_or_would_end_it_still_gets_a_card(client: TestClient, name: str) -> None:
    terms = [{"name": name, "counts": [[1]], "sums": [[2]]}]
    assert client.post("/api/loss_terms", json={"terms": terms}).status_code == 200
    picture = client.get("/en/calculators/loss_terms/card.png", params={"body.terms": json.dumps(terms)})
    assert size_of(picture.content) == (1200, 630)


def test_the_flattened_sheet_has_no_functions_left_and_every_class_of_the_sheets(tmp_path: Path) -> None:
    style = figure_style(CSS)
    for function in ("var(", "color-mix(", "light-dark(", ":is(", "@media"):
        assert function not in style
    for name in ("fig-reference", "fig-current", "p0", "p8", "fig-ring"):
        assert f".{name}" in style


def test_a_drawing_that_cannot_be_read_is_no_fault_of_the_servers(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("samestep.app.web.pages.cards.svg_of", lambda *_: "<svg")
    assert client.get("/en/calculators/clip_order/card.png?max_norm=0.75").status_code == 404
