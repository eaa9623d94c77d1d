"""From Markdown to a `Document`: the parser with all rules, and the passes over its tokens in their order."""

import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.common.utils import escapeHtml
from markdown_it.renderer import RendererProtocol
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict
from mdit_py_plugins.amsmath import amsmath_plugin
from mdit_py_plugins.attrs import attrs_block_plugin, attrs_plugin
from mdit_py_plugins.container import container_plugin
from mdit_py_plugins.deflist import deflist_plugin
from mdit_py_plugins.dollarmath import dollarmath_plugin
from mdit_py_plugins.footnote import footnote_plugin

from samestep.app.book.markdown import cjk, lint
from samestep.app.book.markdown.build import Build, Context, inline_tokens, line_of
from samestep.app.book.markdown.checked import checked_numbers
from samestep.app.book.markdown.containers import boxes
from samestep.app.book.markdown.discuss import discussions
from samestep.app.book.markdown.equations import formulas
from samestep.app.book.markdown.fences import fences
from samestep.app.book.markdown.following import following_numbers
from samestep.app.book.markdown.glue import keep_together
from samestep.app.book.markdown.headings import headings
from samestep.app.book.markdown.links import links
from samestep.app.book.markdown.pieces import Document, Piece, Section
from samestep.app.book.markdown.tables import tables
from samestep.app.book.markdown.terms import terms
from samestep.app.book.markdown.text import reading_minutes, sections
from samestep.app.book.markdown.words import word

_BLOCK_ATTRIBUTES = ("id", "class", "kicker")
_INLINE_ATTRIBUTES = ("id", "class", "lang", "calc", "evidence", "field")
_PIECE = re.compile("\0(\\d+)\0\n?")


def compile_markdown(source: str, file: Path, context: Context, *, first_line: int = 1) -> Document:
    """Compile the text of a chapter whose first line is `first_line` of its file.

    Never raises for an author's mistake: `mistakes` of the result lists them all.
    """
    text = "\n" * (first_line - 1) + source.replace("\r\n", "\n")
    build = Build(file, context, text.split("\n"))
    markdown = _parser()
    env: EnvType = {"build": build}
    tokens = markdown.parse(text, env)
    checked_numbers(tokens, build)
    terms(tokens, build)
    links(tokens, build)
    fences(tokens, build)
    following_numbers(build)
    formulas(tokens, build)
    _anchors(tokens, build)
    cjk.join_lines(tokens)
    keep_together(tokens)
    tokens = headings(discussions(tables(tokens, build), build), build)
    lead, tree = sections(tokens, build, markdown)
    html = markdown.renderer.render(tokens, markdown.options, env)
    for anchor, line in build.links:
        if anchor not in build.anchors:
            build.wrong(line, f"there is no id “{anchor}” in this chapter")
    return Document(
        pieces=_pieces(html, build),
        lead=lead,
        sections=tree,
        anchors=build.anchors,
        equations=tuple(build.equations),
        formulas=build.counts["display"],
        references=tuple(build.references),
        checked=tuple(build.checked),
        terms=tuple(build.terms),
        minutes=reading_minutes([lead, *_texts(tree)], build.counts["display"]),
        mistakes=tuple(build.mistakes),
    )


@lru_cache(maxsize=1)
def _parser() -> MarkdownIt:
    markdown = MarkdownIt("commonmark", {"html": False, "xhtmlOut": False}).enable(["table", "strikethrough"])
    markdown.use(attrs_plugin, spans=True, allowed=_INLINE_ATTRIBUTES)
    markdown.use(attrs_block_plugin, allowed=_BLOCK_ATTRIBUTES)
    markdown.use(container_plugin, "box", validate=lambda params, _markup: bool(params.strip()))
    markdown.use(dollarmath_plugin, allow_labels=False, allow_space=False, allow_blank_lines=False, double_inline=True)
    markdown.use(amsmath_plugin)
    markdown.use(footnote_plugin)
    markdown.use(deflist_plugin)
    markdown.inline.ruler.before("emphasis", "cjk_emphasis", cjk.emphasis)
    markdown.core.ruler.before("inline", "boxes", boxes)
    markdown.core.ruler.after("inline", "left_overs", lint.left_overs)
    markdown.core.ruler.push("attributes", lint.attributes)
    for name in ("open", "close"):
        markdown.add_render_rule(f"footnote_block_{name}", _footnotes_open if name == "open" else _footnotes_close)
    markdown.add_render_rule("footnote_ref", _footnote_ref)
    markdown.add_render_rule("footnote_anchor", _footnote_back)
    return markdown


def _anchors(tokens: Sequence[Token], build: Build) -> None:
    """Note every id that the author wrote (those of formulas and panels are noted where they are made)."""
    lines = [(token, line_of(token)) for token in tokens]
    for token, line in (*lines, *inline_tokens(tokens)):
        if "id" in token.attrs and not token.type.startswith("html_"):
            build.anchor(str(token.attrs["id"]), line)


def _pieces(html: str, build: Build) -> tuple[Piece, ...]:
    parts: list[Piece] = []
    for index, part in enumerate(_PIECE.split(html)):
        if index % 2:
            parts.append(build.refs[int(part)])
        elif part:
            parts.append(part)
    return tuple(parts)


def _texts(tree: Sequence[Section]) -> list[str]:
    return [text for section in tree for text in (section.title, section.text, *_texts(section.children))]


_Rendered = tuple[RendererProtocol, Sequence[Token], int, OptionsDict, EnvType]


def _footnotes_open(*rendered: *_Rendered) -> str:
    label = word("footnotes", rendered[4]["build"].lang)
    return f'<section class="footnotes" role="doc-endnotes" aria-label="{escapeHtml(label)}">\n<ol>\n'


def _footnotes_close(*rendered: *_Rendered) -> str:
    return "</ol>\n</section>\n"


def _footnote_name(token: Token) -> tuple[int, str]:
    """The number of a footnote and the id of this reference to it."""
    number, repeat = token.meta["id"] + 1, token.meta.get("subId", 0)
    return number, f"fnref{number}-{repeat}" if repeat else f"fnref{number}"


def _footnote_ref(*rendered: *_Rendered) -> str:
    _, tokens, index, _, env = rendered
    number, identifier = _footnote_name(tokens[index])
    label = word("footnote", env["build"].lang, number)
    return f'<sup class="footnote-ref"><a href="#fn{number}" id="{identifier}" aria-label="{label}">{number}</a></sup>'


def _footnote_back(*rendered: *_Rendered) -> str:
    _, tokens, index, _, env = rendered
    number, identifier = _footnote_name(tokens[index])
    label = word("back", env["build"].lang, number)
    return f' <a class="footnote-back" href="#{identifier}" aria-label="{label}">\u21a9\ufe0e</a>'
