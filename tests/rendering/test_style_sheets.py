"""Style sheets: small files on disk, one bundle for each kind of page."""

import pytest

from samestep.app.rendering import style_sheets
from tests.kit import ROOT

CSS = ROOT / "static" / "css"
MADE = {"math-font", "code"}


def test_every_sheet_has_its_place_in_the_cascade_and_is_worn_by_some_kind_of_page() -> None:
    on_disk = {path.stem for path in CSS.glob("*.css")}
    assert on_disk | MADE == {*style_sheets.ORDER, "print"}
    assert set().union(*style_sheets.KINDS.values()) == set(style_sheets.ORDER)


def test_no_sheet_is_longer_than_300_lines() -> None:
    assert [path.name for path in CSS.glob("*.css") if path.read_text("utf-8").count("\n") > 300] == []


@pytest.mark.parametrize("kind", style_sheets.KINDS)
def test_a_bundle_keeps_the_order_of_the_cascade_and_ends_with_the_sheet_for_paper(kind: str) -> None:
    found = style_sheets.bundle(kind, lambda name: f"/* about {name} */\n.{name} {{\n  top: 0;\n}}\n")
    worn = [name for name in style_sheets.ORDER if f".{name} {{" in found]
    assert set(worn) == style_sheets.KINDS[kind]
    assert sorted(worn, key=lambda name: found.index(f".{name} {{")) == worn
    assert found.endswith("@media print {\n.print {\ntop: 0;\n}\n}\n")
    assert "about" not in found


def test_an_unknown_kind_of_page_has_no_bundle() -> None:
    with pytest.raises(KeyError):
        style_sheets.bundle("nothing", str)
