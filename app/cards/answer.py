"""What a card shows of an answer: its verdict, first numbers and first figure, read from the HTML of the page.

A figure that only repeats what was typed (`data-typed`) is shown where there is no other.
"""

import re
from dataclasses import dataclass, field
from html.parser import HTMLParser

_FIGURE = re.compile(r'<svg class="figure[^"]*".*?</svg>', re.DOTALL)
_TYPED = '<svg class="figure" data-typed '
_NUMBERS = 3
_KINDS = ("same", "other", "undefined", "coincidence")


@dataclass(frozen=True)
class Shown:
    """`kind` is the verdict's class; `numbers` are (label, value) pairs; `figure` is SVG, or empty."""

    verdict: str
    kind: str
    numbers: tuple[tuple[str, str], ...]
    figure: str


def shown_in(html: str) -> Shown:
    """The parts of a result's HTML."""
    reader = _Reader()
    reader.feed(html)
    figures = sorted(_FIGURE.findall(html), key=lambda svg: _TYPED in svg)
    pairs = [(_tidy(label), _tidy(value)) for label, value in reader.numbers]
    return Shown(
        verdict=_tidy(reader.verdict),
        kind=next((kind for kind in _KINDS if kind in reader.kind.split()), ""),
        numbers=tuple((label, value) for label, value in pairs if value)[:_NUMBERS],
        figure=figures[0] if figures else "",
    )


def _tidy(text: str) -> str:
    return " ".join(text.split())


@dataclass
class _Reader(HTMLParser):
    """Collects the text of the element with `data-verdict`, and of `dt` and `dd` in `.readouts`.

    Small print is left out, but for what says that a number is assumed.
    """

    verdict: str = ""
    kind: str = ""
    numbers: list[list[str]] = field(default_factory=list)
    _into: str = ""
    _tag: str = ""
    _small: list[bool] = field(default_factory=list)
    _readouts: bool = False

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        classes = (given.get("class") or "").split()
        if "data-verdict" in given and not self.verdict:
            self._into, self._tag, self.kind = "verdict", tag, " ".join(classes)
        elif tag == "dl":
            self._readouts = "readouts" in classes
        elif tag in ("dt", "dd") and self._readouts:
            self._into, self._tag = tag, tag
            if tag == "dt":
                self.numbers.append(["", ""])
        elif tag == "small":
            self._small.append("assumed" not in classes)

    def handle_endtag(self, tag: str) -> None:
        if tag == "small" and self._small:
            self._small.pop()
        elif tag == self._tag:
            self._into = self._tag = ""

    def handle_data(self, data: str) -> None:
        if self._into == "verdict":
            self.verdict += data
        elif self._into and self.numbers and not any(self._small):
            self.numbers[-1][self._into == "dd"] += data
