"""A text's sections as a tree, their plain text for search, and how long it takes to read."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from markdown_it import MarkdownIt
from markdown_it.token import Token

from samestep.app.book.markdown.build import Build
from samestep.app.book.markdown.cjk import HAN
from samestep.app.book.markdown.pieces import Section

_HAN_RE = re.compile(f"[{HAN}]")
_WORD_RE = re.compile(r"[A-Za-z0-9][\w’'.-]*")
_HAN_PER_MINUTE, _WORDS_PER_MINUTE, _FORMULAS_PER_MINUTE = 350, 200, 4


@dataclass
class _Part:
    """A heading (or, at level 1, the chapter's beginning) and what stands below it."""

    level: int
    id: str = ""
    title: str = ""
    title_html: str = ""
    kicker: str = ""
    texts: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)

    def section(self, children: Sequence["_Part"] = ()) -> Section:
        return Section(
            self.id,
            self.level,
            self.title,
            self.title_html,
            self.kicker,
            self.text(),
            " ".join(dict.fromkeys(" ".join(self.names).split())),
            tuple(child.section() for child in children),
        )

    def text(self) -> str:
        """Blocks and cells, divided by blank lines: no word goes on from one to the next."""
        return "\n\n".join(text for text in map(str.strip, self.texts) if text)


def sections(tokens: Sequence[Token], build: Build, markdown: MarkdownIt) -> tuple[str, tuple[Section, ...]]:
    """The plain text before the first heading, and the tree of headings."""
    parts = [_Part(level=1)]
    notes: dict[int, _Part] = {}
    part = parts[0]
    heading = False
    for token in tokens:
        if token.type == "heading_open":
            part = _Part(int(token.tag[1]), str(token.attrs.get("id", "")), kicker=token.meta.get("kicker", ""))
            parts.append(part)
            heading = True
        elif token.type == "footnote_open":
            part = notes.get(token.meta["id"], part)
        elif token.type == "inline" and heading:
            children = [child for child in token.children or [] if not child.content.startswith(("<a ", "</a>"))]
            part.title = plain_text(children)
            part.title_html = markdown.renderer.renderInline(children, markdown.options, {})  # type: ignore[attr-defined]
            heading = False
        elif token.type == "inline":
            _collect(token.children or [], part, notes)
        elif token.type == "html_block":
            part.texts.append(token.meta.get("text", ""))
            part.names.append(token.meta.get("names", ""))
    return parts[0].text(), _tree(parts[1:])


def _collect(children: Sequence[Token], part: _Part, notes: dict[int, _Part]) -> None:
    part.texts.append(plain_text(children))
    for child in children:
        part.names.append(child.meta.get("names", ""))
        if child.type == "footnote_ref":
            notes.setdefault(child.meta["id"], part)


def _tree(parts: Sequence[_Part]) -> tuple[Section, ...]:
    top: list[tuple[_Part, list[_Part]]] = []
    for part in parts:
        if part.level > 2 and top:
            top[-1][1].append(part)
        else:
            top.append((part, []))
    return tuple(part.section(children) for part, children in top)


def plain_text(children: Sequence[Token]) -> str:
    """What a reader would copy: no markup, formulas as their characters."""
    out = []
    for token in children:
        if token.type in ("text", "code_inline", "text_special"):
            out.append(token.content)
        elif token.type in ("softbreak", "hardbreak"):
            out.append(" ")
        elif token.type == "html_inline":
            out.append(token.meta.get("text", ""))
    return "".join(out)


def reading_minutes(texts: Sequence[str], display_formulas: int) -> int:
    """Minutes to read: Chinese characters, other words and display formulas each at their own speed; at least 1."""
    text = "\n".join(texts)
    minutes = (
        len(_HAN_RE.findall(text)) / _HAN_PER_MINUTE
        + len(_WORD_RE.findall(text)) / _WORDS_PER_MINUTE
        + display_formulas / _FORMULAS_PER_MINUTE
    )
    return max(1, math.ceil(minutes))
