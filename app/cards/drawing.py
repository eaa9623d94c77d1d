"""A card as SVG, and as the PNG that it is sent as: 1200 × 630 pixels, what link previews ask for."""

import re
from dataclasses import dataclass
from html import escape

import resvg_py

from samestep.app.cards.answer import Shown
from samestep.app.cards.fonts import Fonts
from samestep.app.contract.languages import Lang

WIDTH, HEIGHT = 1200, 630
_MARGIN = 64
_INNER = WIDTH - 2 * _MARGIN
_HEAD = {"zh": "同一步", "en": "SameStep"}
_ASKED = {"zh": "还是同一次更新吗？", "en": "Is it still the same update?"}
_MARKS = {"same": "=", "other": "≠", "undefined": "?", "coincidence": "≈"}
_COLOURS = {"same": "--reference", "other": "--current", "coincidence": "--current"}
_HAN = re.compile("[\u2e80-\u9fff\uf900-\ufaff\uff00-\uffef]")
_VIEW_BOX = re.compile(r'viewBox="([-\d. ]+)"')
_NO_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that a name may hold and XML cannot (XML 1.0, section 2.2)."""
_NARROW = str.maketrans({"‘": "&#39;", "’": "&#39;", "“": "&#34;", "”": "&#34;"})
"""Quotation marks, which Chinese fonts draw as wide as a character, for English words."""
_PIECE = re.compile(
    "[\u2e80-\u9fff\uf900-\ufaff\uff00-\uffef][，。；：、！？）”]?|[^\\s\u2e80-\u9fff\uf900-\ufaff\uff00-\uffef]+\\s*|\\s+"
)
_EM_LATIN, _EM_HAN = 0.53, 1.0


@dataclass(frozen=True)
class Card:
    """What a card says: the page's title, and what its state shows."""

    lang: Lang
    title: str
    shown: Shown


def svg_of(card: Card, fonts: Fonts, style: str, colours: dict[str, str]) -> str:
    """The card's SVG; words whose glyphs the fonts lack are left out."""
    written = _Writer(fonts, colours)
    accent = colours[_COLOURS.get(card.shown.kind, "--line-strong")]
    y = written.line(_MARGIN, 72, 26, f"{_HEAD[card.lang]} · {card.title}", "--ink-soft")
    lines = written.wrapped(card.shown.verdict, 40, _INNER - 110, most=3)
    height = 30 + 54 * len(lines)
    if lines:
        y += 22
        written.add(f'<rect x="{_MARGIN}" y="{y}" width="{_INNER}" height="{height}" fill="{colours["--sunk"]}"/>')
        written.add(f'<rect x="{_MARGIN}" y="{y}" width="8" height="{height}" fill="{accent}"/>')
        mark = _MARKS.get(card.shown.kind, "")
        written.add(written.text(_MARGIN + 26, y + 56, 40, mark, accent, bold=True))
        for i, line in enumerate(lines):
            indent = 78 if mark else 26
            written.add(written.text(_MARGIN + indent, y + 56 + 54 * i, 40, line, colours["--ink"], bold=True))
        y += height
    _numbers(written, card, y + 56)
    _figure(written, card.shown.figure, y + 24, numbers=bool(card.shown.numbers))
    written.line(_MARGIN, HEIGHT - 30, 22, _ASKED[card.lang], "--ink-soft")
    drawn = written.all.translate(_NARROW) if card.lang == "en" and fonts.chinese else written.all
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'font-family="{escape(fonts.family)}"><style>{style}\n.figure, .figure text {{font-family: "{fonts.family}"}}'
        f'</style><rect width="{WIDTH}" height="{HEIGHT}" fill="{colours["--paper"]}"/>{drawn}</svg>'
    )


def png_of(svg: str, fonts: Fonts) -> bytes:
    """The picture; pure, so that a worker may draw it."""
    return resvg_py.svg_to_bytes(
        svg_string=_NO_XML.sub("\N{REPLACEMENT CHARACTER}", svg),
        width=WIDTH,
        height=HEIGHT,
        skip_system_fonts=True,
        font_files=list(fonts.files),
        font_family=fonts.family,
        sans_serif_family=fonts.family,
        serif_family=fonts.family,
        monospace_family=fonts.family,
    )


def _numbers(written: "_Writer", card: Card, y: float) -> None:
    """The readouts, one below the other at the left."""
    for label, value in card.shown.numbers:
        if y > HEIGHT - 110:
            return
        for line in written.wrapped(label, 22, 400, most=1):
            written.add(written.text(_MARGIN, y, 22, line, written.colours["--ink-soft"]))
        size = 38 if _width(value) * 38 < 400 else 24
        for line in written.wrapped(value, size, 400, most=1):
            written.add(written.text(_MARGIN, y + 46, size, line, written.colours["--ink"], bold=True))
        y += 104


def _figure(written: "_Writer", figure: str, y: float, *, numbers: bool) -> None:
    """The figure, as large as the room beside the numbers lets it be."""
    found = _VIEW_BOX.search(figure)
    if found is None:
        return
    _, _, width, height = map(float, found[1].split())
    left = _MARGIN + 430 if numbers else _MARGIN
    room, tall = WIDTH - _MARGIN - left, HEIGHT - 64 - y
    if tall < 80 or not width or not height:
        return
    scale = min(room / width, tall / height)
    place = f'x="{left + (room - scale * width) / 2:.1f}" y="{y:.1f}" '
    place += f'width="{scale * width:.1f}" height="{scale * height:.1f}" overflow="visible" '
    if not written.fonts.chinese:
        figure = _HAN.sub("", figure)
    written.add(figure.replace("<svg ", f"<svg {place}", 1))


class _Writer:
    """Collects elements; measures text by the usual widths of its characters."""

    def __init__(self, fonts: Fonts, colours: dict[str, str]) -> None:
        self.fonts, self.colours = fonts, colours
        self._parts: list[str] = []

    @property
    def all(self) -> str:
        return "".join(self._parts)

    def add(self, element: str) -> None:
        self._parts.append(element)

    def line(self, x: float, y: float, size: int, words: str, colour: str) -> float:
        for line in self.wrapped(words, size, _INNER, most=1):
            self.add(self.text(x, y, size, line, self.colours[colour]))
        return y

    def text(self, x: float, y: float, size: int, words: str, fill: str, *, bold: bool = False) -> str:
        weight = ' font-weight="700"' if bold else ""
        return f'<text x="{x}" y="{y}" font-size="{size}" fill="{fill}"{weight}>{escape(words)}</text>'

    def wrapped(self, words: str, size: int, width: float, most: int) -> list[str]:
        """Lines no wider than `width`; what is left over ends in an ellipsis. None where glyphs are missing."""
        if not words or (_HAN.search(words) and not self.fonts.chinese):
            return []
        lines, line = [], ""
        for piece in _PIECE.findall(words):
            if line and _width(line + piece.rstrip()) * size > width:
                lines.append(line.rstrip())
                line = ""
            line += piece if line else piece.lstrip()
        lines.append(line.rstrip())
        if len(lines) > most:
            lines = [*lines[: most - 1], lines[most - 1].rstrip("，。；,.; ") + "…"]
        return lines


def _width(text: str) -> float:
    return sum(_EM_HAN if _HAN.match(character) else _EM_LATIN for character in text)
