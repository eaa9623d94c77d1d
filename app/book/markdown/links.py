"""Links: `ch:slug#id` to a chapter, `src:id` to the chapter's list of sources, `#id` within the chapter, addresses."""

import re
from collections.abc import Sequence

from markdown_it.common.utils import escapeHtml
from markdown_it.token import Token

from samestep.app.book.markdown.build import Build, inline_tokens, make_raw
from samestep.app.book.markdown.pieces import Reference
from samestep.app.book.markdown.words import word

_OUTSIDE = re.compile(r"https?://\S+|mailto:\S+")


def links(tokens: Sequence[Token], build: Build) -> None:
    """Give every link its address; one to a planned chapter becomes text that says so."""
    planned: list[bool] = []
    for token, line in inline_tokens(tokens):
        if token.type == "link_open":
            planned.append(_resolve(token, build, str(token.attrs.get("href", "")), line))
        elif token.type == "link_close" and planned.pop():
            note = word("planned", build.lang)
            make_raw(token, f' <span class="planned-mark">({escapeHtml(note)})</span></span>', text="")
        elif token.type == "image":
            build.wrong(line, "pictures are not supported: figures belong to calculators and experiments")


def _resolve(token: Token, build: Build, href: str, line: int) -> bool:
    """Set the address of a link; returns whether it became the start of a planned chapter's mark."""
    link = build.context.link
    kind, _, rest = href.partition(":")
    if kind == "ch":
        return _chapter(token, build, rest, line)
    if kind == "src":
        if build.context.sources is not None and rest not in build.context.sources:
            build.wrong(line, f"there is no source “{rest}” in the head of this chapter")
        token.attrs["href"] = f"#source-{rest}"
        token.attrJoin("class", "source")
    elif href.startswith("#") and len(href) > 1:
        build.links.append((href[1:], line))
    elif href.startswith("/") and not href.startswith("//"):
        token.attrs["href"] = link(href)
    elif _OUTSIDE.fullmatch(href):
        token.attrs["rel"] = "external"
    else:
        build.wrong(line, f"the link “{href}” leads nowhere: write ch:slug#id, src:id, #id, /path or https://…")
    return False


def _chapter(token: Token, build: Build, target: str, line: int) -> bool:
    slug, _, anchor = target.partition("#")
    if slug in build.context.chapters:
        build.references.append(Reference(slug, anchor, line))
        path = f"/{build.lang}/{slug}" + (f"#{anchor}" if anchor else "")
        token.attrs["href"] = build.context.link(path)
        token.attrJoin("class", "chapter")
        return False
    if slug not in build.context.planned:
        build.wrong(line, f"there is no chapter “{slug}”, and none is planned in planned.toml")
    make_raw(token, '<span class="planned">')
    return True
