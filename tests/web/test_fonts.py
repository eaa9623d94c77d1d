"""The math font: packed once, kept by what it is made of, and never in the way of a start."""

import html
import logging
import re
import subprocess
import unicodedata
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from fontTools import subset
from fontTools.ttLib import TTFont

from samestep.app.web import fonts
from tests.kit import the_book

FORMULA = re.compile("<math.*?</math>", re.DOTALL)
ELSEWHERE = re.compile("[\u2e80-\u9fff\uff00-\uffef\ufe00]")
"""Chinese words within formulas have the text's own fonts; a variation selector has no sign of its own."""
ITALICS = [chr(code) for code in (0x210E, *range(0x1D434, 0x1D455), *range(0x1D456, 0x1D468), *range(0x1D6E2, 0x1D71C))]
SLANTED = {unicodedata.normalize("NFKC", italic): italic for italic in reversed(ITALICS)}
"""What the browser shows for a letter that stands alone; of two forms of a Greek one the first."""


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def kept(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder that tests of the whole font share, because packing it takes seconds."""
    monkeypatch.setenv("SAMESTEP_CACHE_DIR", str(cache))
    return cache


@pytest.fixture(scope="module")
def two_letters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("source") / "two-letters.ttf"
    options = subset.Options(layout_features=["ssty"])
    with subset.load_font(str(fonts.source_font()), options) as font:
        subsetter = subset.Subsetter(options)
        subsetter.populate(unicodes=[0x1D465, 0x2032])
        subsetter.subset(font)
        font.save(file)
    return file


@pytest.fixture
def small(two_letters: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A font of two letters to pack, into a cache folder of the test's own."""
    monkeypatch.setenv("SAMESTEP_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(fonts, "source_font", lambda: two_letters)


def found() -> fonts.MathFont:
    font = fonts.math_font()
    assert font is not None
    return font


def test_the_font_is_packed_into_the_cache_folder_and_small(kept: Path) -> None:
    font = found()
    assert font.format == "woff2"
    assert font.path.parent == kept / "fonts"
    assert font.data[:4] == b"wOF2"
    assert 50_000 < len(font.data) < 100_000


def test_it_has_the_letters_operators_and_large_primes_of_formulas(kept: Path) -> None:
    packed, source = TTFont(found().path), TTFont(fonts.source_font())
    letters = packed.getBestCmap()
    assert {0x1D465, 0x1D49F, 0x2211, 0x221A, 0x23DF, 0x03C4, 0x2032} <= set(letters)
    height, small = (font["glyf"][font.getBestCmap()[0x2032]].yMax for font in (packed, source))
    assert (height, small) == (527, 703), "the prime is the script alternate: lower, and larger when set as a script"
    assert "MATH" in packed


def test_it_has_every_sign_of_the_books_formulas(kept: Path) -> None:
    chapters = [chapter for chapters in the_book().chapters.values() for chapter in chapters]
    formulas = "".join(FORMULA.findall("".join(str(piece) for chapter in chapters for piece in chapter.pieces)))
    single = {SLANTED.get(letter, letter) for letter in re.findall(r"<mi>(.)</mi>", formulas)}
    signs = single | set(ELSEWHERE.sub("", html.unescape(re.sub("<[^>]*>", "", formulas))))
    assert len(signs) > 150
    lacking = signs - {chr(code) for code in TTFont(found().path).getBestCmap()}
    assert lacking == set(), "to be added to fonts._RANGES"


def test_a_second_start_packs_nothing(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = found()

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("packed again")

    monkeypatch.setattr(subprocess, "run", refuse)
    assert found() == first


@pytest.mark.usefixtures("small")
def test_a_broken_file_in_the_cache_is_packed_again() -> None:
    path = found().path
    path.write_bytes(b"")
    assert found().data[:4] == b"wOF2"


@pytest.mark.usefixtures("small")
def test_two_starts_at_once_leave_one_whole_file() -> None:
    before = found()
    data = before.data
    before.path.unlink()
    with ThreadPoolExecutor(2) as pool:
        both = list(pool.map(lambda _: found(), range(2)))
    assert both == [before, before]
    assert before.data == data, "packing gives the same bytes every time"
    assert list(before.path.parent.iterdir()) == [before.path]


def test_without_a_writable_folder_the_original_font_is_served_and_the_log_says_how_to_help(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("SAMESTEP_CACHE_DIR", str(blocked / "inside"))
    with caplog.at_level(logging.WARNING):
        font = found()
    assert (font.format, font.path) == ("truetype", fonts.source_font())
    assert len(caplog.records) == 1
    assert "SAMESTEP_CACHE_DIR" in caplog.records[0].getMessage()
    assert "\n" not in caplog.records[0].getMessage()


def test_a_failed_packing_falls_back_to_the_original_font(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broken = tmp_path / "broken.ttf"
    broken.write_bytes(b"no font")
    monkeypatch.setenv("SAMESTEP_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(fonts, "source_font", lambda: broken)
    with caplog.at_level(logging.WARNING):
        assert found().path == broken
    assert "math font not packed" in caplog.text
    assert not list((tmp_path / "fonts").iterdir())


def test_a_missing_font_is_one_clear_line(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(fonts, "source_font", lambda: None)
    with caplog.at_level(logging.WARNING):
        assert fonts.math_font() is None
    assert [record.getMessage().split(":")[0] for record in caplog.records] == ["math font missing"]
    assert "-m pip install" in caplog.text
