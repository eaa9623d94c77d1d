"""The whole book on one page: every id becomes its chapter's own, links between chapters lead to places on the page.

Works on HTML that this wiki made itself: attributes in double quotes, `>` and `"` escaped wherever they are text.
"""

import re
from collections import Counter
from collections.abc import Set
from dataclasses import dataclass

from markupsafe import escape

_TAG = re.compile(r"</?[a-zA-Z][^>]*>")
_HEADING = re.compile(r"(</?h)([1-5])")
_ID = re.compile(r' (id|for|headers|aria-(?:labelledby|describedby|controls|owns|details))="([^"]+)"')
_HREF = re.compile(r' href="([^"]*)"')
_REFERENCE = re.compile(r'="url\(#([^"]+)\)"')
_LABEL = re.compile(r' aria-label="([^"]*)"')
_LANDMARK = re.compile(r'<section\b|<[^>]* role="region"')


@dataclass(frozen=True)
class Binding:
    """How the HTML of one chapter becomes a part of the page.

    `place` is the address of the chapters' folder, such as `/wiki/zh/`; `slugs` are the chapters on the page. A chapter
    itself is at `#slug`, what it holds at `#slug.id`.
    """

    slug: str
    title: str
    place: str
    slugs: Set[str]

    def bound(self, html: str) -> str:
        """The same text one heading level lower, with its own ids, and with landmarks that are named like no other."""
        names: Counter[str] = Counter()
        return _TAG.sub(lambda match: self._tag(match[0], names), html)

    def _tag(self, tag: str, names: Counter[str]) -> str:
        if tag.startswith(("<h", "</h")):
            tag = _HEADING.sub(lambda match: f"{match[1]}{int(match[2]) + 1}", tag, count=1)
        if "=" not in tag:
            return tag
        if _LANDMARK.match(tag):
            tag = _LABEL.sub(lambda match: self._label(match[1], names), tag)
        tag = _ID.sub(self._ids, tag)
        tag = _HREF.sub(lambda match: f' href="{self._address(match[1])}"', tag)
        return _REFERENCE.sub(lambda match: f'="url(#{self.slug}.{match[1]})"', tag)

    def _label(self, label: str, names: Counter[str]) -> str:
        names[label] += 1
        number = f" ({names[label]})" if names[label] > 1 else ""
        return f' aria-label="{escape(self.title)} · {label}{number}"'

    def _ids(self, match: re.Match[str]) -> str:
        ids = " ".join(f"{self.slug}.{name}" for name in match[2].split())
        return f' {match[1]}="{ids}"'

    def _address(self, href: str) -> str:
        if href.startswith("#"):
            return f"#{self.slug}.{href[1:]}"
        path, _, anchor = href.partition("#")
        slug = path.removeprefix(self.place)
        if path.startswith(self.place) and slug in self.slugs:
            return f"#{slug}.{anchor}" if anchor else f"#{slug}"
        return href
