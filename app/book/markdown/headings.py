"""Headings: ids written by hand, levels in order, the short line above them."""

import re
from collections.abc import Sequence

from markdown_it.common.utils import escapeHtml
from markdown_it.token import Token

from samestep.app.book.markdown.build import Build, line_of, raw

_ID = re.compile(r"[a-z][a-z0-9_-]*")


def headings(tokens: Sequence[Token], build: Build) -> list[Token]:
    """Check every heading, make it a link to itself, and group it with its kicker."""
    out: list[Token] = []
    level, grouped = 1, False
    for index, token in enumerate(tokens):
        if token.type == "heading_open":
            level = _check(token, build, level)
            grouped = _open(token, tokens[index + 1], build, out)
        out.append(token)
        if token.type == "heading_close" and grouped:
            out.append(raw("</hgroup>\n", block=True))
    return out


def _check(token: Token, build: Build, previous: int) -> int:
    level, line = int(token.tag[1]), line_of(token)
    if level == 1:
        build.wrong(line, "the chapter's title stands in its head: headings start with ##")
    elif level > 3:
        build.wrong(line, "headings have two levels, ## and ###")
    elif level > previous + 1:
        build.wrong(line, f"a {'#' * level} heading must stand below a {'#' * (level - 1)} heading")
    if token.level:
        build.wrong(line, "a heading cannot stand inside a box, list or quotation")
    identifier = str(token.attrs.get("id", ""))
    if not identifier:
        build.wrong(line, "the heading has no id: write {#sec-…} on the line before it, the same in both languages")
    elif not _ID.fullmatch(identifier):
        build.wrong(line, f"the id “{identifier}” must be made of a-z, 0-9, _ and -, and start with a letter")
    return level


def _open(token: Token, inline: Token, build: Build, out: list[Token]) -> bool:
    children = inline.children or []
    if any(child.type in ("link_open", "footnote_ref") or "href" in child.attrs for child in children):
        build.wrong(line_of(token), "a heading cannot hold a link, a footnote or a checked number")
    elif identifier := token.attrs.get("id"):
        inline.children = [raw(f'<a class="anchor" href="#{escapeHtml(str(identifier))}">'), *children, raw("</a>")]
    kicker = str(token.attrs.pop("kicker", ""))
    token.meta = {**token.meta, "kicker": kicker}
    if kicker:
        out.append(raw(f'<hgroup>\n<p class="kicker">{escapeHtml(kicker)}</p>\n', block=True))
    return bool(kicker)
