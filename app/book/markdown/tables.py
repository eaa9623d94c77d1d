"""Tables scroll inside a region of their own, so that the page never scrolls sideways."""

import re
from collections.abc import Sequence

from markdown_it.common.utils import escapeHtml
from markdown_it.rules_block.table import escapedSplit
from markdown_it.token import Token

from samestep.app.book.markdown.build import Build, line_of, raw
from samestep.app.book.markdown.words import word

_ONLY_FORMULAS = re.compile(r"\s*(\$[^$]+\$[\s,;/·]*)+")
"""A header that holds nothing else has no text that every reader's tool finds: it is named by its source."""


def tables(tokens: Sequence[Token], build: Build) -> list[Token]:
    out: list[Token] = []
    columns = 0
    for token, following in zip(tokens, [*tokens[1:], None], strict=False):
        if token.type == "table_open":
            label = word("table", build.lang, build.count("table"))
            start = f'<div class="table-scroll" tabindex="0" role="region" aria-label="{label}">\n'
            out.append(raw(start, block=True))
            columns = 0
        elif token.type == "th_open":
            columns += 1
            token.attrSet("scope", "col")
            if following is not None and following.children and _ONLY_FORMULAS.fullmatch(following.content):
                name = escapeHtml(re.sub(r"[$\\{}]", "", following.content).strip())
                following.children.append(raw(f'<span class="visually-hidden">{name}</span>'))
        elif token.type == "tr_open" and columns:
            _check_width(token, columns, build)
        if token.type in ("th_open", "td_open") and "style" in token.attrs:
            align = str(token.attrs.pop("style")).removeprefix("text-align:")
            token.attrJoin("class", f"align-{align}")
        out.append(token)
        if token.type == "table_close":
            out.append(raw("</div>\n", block=True))
    return out


def _check_width(row: Token, columns: int, build: Build) -> None:
    """A row with more cells than the header would lose them without a word: usually a `|` in a formula."""
    line = line_of(row)
    cells = escapedSplit(build.lines[line - 1].strip(" >").removeprefix("|").removesuffix("|"))
    if len(cells) > columns:
        reason = "(in a cell, write \\lvert x\\rvert or \\|)"
        build.wrong(line, f"the row has {len(cells)} cells, the table {columns} columns {reason}")
