"""Terms of the glossary: the first time that a chapter's prose uses one, it is a link that carries its definition."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

from markdown_it.common.utils import escapeHtml
from markdown_it.token import Token

from samestep.app.book.markdown.build import Build, raw
from samestep.app.book.markdown.glossary import Finder

_NO_PROSE = ("heading_open", "title_open", "th_open", "td_open", "dt_open")
"""What holds names and numbers, not sentences; a title may moreover be a button that opens its box."""


def terms(tokens: Sequence[Token], build: Build) -> None:
    """Link terms; `build.terms` holds the ids that were found, in the order of the text."""
    finder = build.context.terms
    if finder is None:
        return
    for before, block in pairwise(tokens):
        if block.type == "inline" and before.type not in _NO_PROSE:
            block.children = list(_linked(block.children or [], finder, build))


def _linked(children: Sequence[Token], finder: Finder, build: Build) -> Iterator[Token]:
    """The tokens with links round new terms; a text inside a link or span stays what its author made it."""
    inside = 0
    for token in children:
        if token.type in ("link_open", "span_open"):
            inside += 1
        elif token.type in ("link_close", "span_close"):
            inside -= 1
        if token.type == "text" and not inside:
            yield from _cut(token, finder, build)
        else:
            yield token


def _cut(token: Token, finder: Finder, build: Build) -> Iterator[Token]:
    text, done = token.content, 0
    for start, end, identifier in finder.find(text):
        if identifier in build.terms:
            continue
        build.terms.append(identifier)
        yield from (_text(text[done:start]), _link(identifier, finder, build), _text(text[start:end]), raw("</a>"))
        done = end
    token.content = text[done:]
    yield token


def _text(content: str) -> Token:
    return Token("text", "", 0, content=content)


def _link(identifier: str, finder: Finder, build: Build) -> Token:
    address = build.context.link(f"/{build.lang}/glossary#{identifier}")
    definition = escapeHtml(finder.definition(identifier))
    return raw(f'<a class="term" id="term-{identifier}" href="{escapeHtml(address)}" aria-description="{definition}">')
