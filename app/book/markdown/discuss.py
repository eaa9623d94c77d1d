"""At the end of every section, where the wiki says how: a link to discuss or correct it."""

from collections.abc import Sequence

from markdown_it.common.utils import escapeHtml
from markdown_it.token import Token

from samestep.app.book.markdown.build import Build, raw
from samestep.app.book.markdown.words import word


def discussions(tokens: Sequence[Token], build: Build) -> list[Token]:
    """Close every `##` section with its link; it is described by the section's heading."""
    if build.context.discuss is None:
        return list(tokens)
    out: list[Token] = []
    section = ""
    for token in tokens:
        if token.type == "footnote_block_open" or (token.type == "heading_open" and token.tag == "h2"):
            if section:
                out.append(_link(section, build.context.discuss(section), build))
            section = str(token.attrs.get("id", ""))
        out.append(token)
    if section:
        out.append(_link(section, build.context.discuss(section), build))
    return out


def _link(section: str, address: str, build: Build) -> Token:
    text = escapeHtml(word("discuss", build.lang))
    link = f'<a href="{escapeHtml(address)}" rel="external" aria-describedby="{escapeHtml(section)}">{text}</a>'
    return raw(f'<p class="discuss">{link}</p>\n', block=True)
