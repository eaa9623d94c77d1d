"""Marks of Markdown that stayed in the text, because what they were meant to begin or end was not recognised."""

import re

from markdown_it.rules_core import StateCore

from samestep.app.book.markdown.build import Build, inline_tokens, line_of

_LEFT_OVER = (
    (re.compile(r"\$"), "a $ without its partner (a dollar sign is \\$; a formula has no space just inside its $)"),
    (re.compile(r"\*\*"), "a ** without its partner (stars to print are \\*\\*)"),
    (re.compile(r"\]\{"), 'the attributes after ] cannot be read: write {key="value"} with straight quotes'),
    (re.compile(r"\]\("), "the link cannot be read: write [text](ch:slug#id), without spaces in the address"),
    (re.compile(r"\[\^"), "the footnote is not defined: write [^name]: text"),
    (
        re.compile(r"^\{[#.\w].*\}$"),
        "an attribute line {…} needs an empty line before it, a block right after it, straight quotes",
    ),
    (re.compile(r"^:{3,}"), "a ::: without its partner, or without an empty line before it"),
)


def left_overs(state: StateCore) -> None:
    """Core rule before escaped characters are merged into the text, where `\\$` can still be told from `$`."""
    build: Build = state.env["build"]
    for token, line in inline_tokens(state.tokens):
        if token.type == "text":
            for pattern, reason in _LEFT_OVER:
                if pattern.search(token.content):
                    build.wrong(line, reason)


def attributes(state: StateCore) -> None:
    """Core rule: report attributes that are not for authors to set."""
    build: Build = state.env["build"]
    lines = [(token, line_of(token)) for token in state.tokens]
    for token, line in (*lines, *inline_tokens(state.tokens)):
        for name in token.meta.get("insecure_attrs", ()):
            build.wrong(line, f"the attribute “{name}” is not allowed here")
