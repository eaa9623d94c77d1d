"""Code with Pygments, in two calm sets of colours that keep a contrast of 5 : 1 on the page's own background."""

from functools import cache
from typing import ClassVar

from markdown_it.common.utils import escapeHtml
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name
from pygments.style import Style
from pygments.token import STANDARD_TYPES, Comment, Generic, Keyword, Name, Number, Operator, String, _TokenType
from pygments.util import ClassNotFound

from samestep.app.book.markdown.words import word
from samestep.app.contract.languages import Lang

_WIDE = 40
"""Lines longer than this scroll on a phone."""


class UnknownLanguageError(ValueError):
    """Pygments has no lexer of that name."""


class Light(Style):
    styles: ClassVar[dict[_TokenType, str]] = {
        Comment: "italic #5b6169",
        Keyword: "bold #7a2e5d",
        Name.Function: "#1d4f8c",
        Name.Class: "#1d4f8c",
        Name.Decorator: "#6b4a00",
        Name.Builtin: "#0b5a5e",
        Number: "#8a3b00",
        String: "#2f5d1e",
        Operator: "#4a4f57",
        Generic.Deleted: "#9b1c1c",
        Generic.Inserted: "#2f5d1e",
        Generic.Prompt: "#5b6169",
    }


class Dark(Style):
    styles: ClassVar[dict[_TokenType, str]] = {
        Comment: "italic #a3abb5",
        Keyword: "bold #e7a3cb",
        Name.Function: "#9cc4f5",
        Name.Class: "#9cc4f5",
        Name.Decorator: "#e3c27a",
        Name.Builtin: "#86d3d6",
        Number: "#f2b48a",
        String: "#a9d492",
        Operator: "#c3c9d1",
        Generic.Deleted: "#f5a3a3",
        Generic.Inserted: "#a9d492",
        Generic.Prompt: "#a3abb5",
    }


def code_block(text: str, language: str, lang: Lang) -> str:
    """The `<pre>` of a code block; `language` may be empty. Raises UnknownLanguageError."""
    try:
        lexer = get_lexer_by_name(language or "text", stripnl=False)
    except ClassNotFound:
        raise UnknownLanguageError(language) from None
    body = highlight(text, lexer, HtmlFormatter(nowrap=True))
    wide = any(len(line) > _WIDE for line in text.splitlines())
    scroll = f' tabindex="0" role="group" aria-label="{word("code", lang)}"' if wide else ""
    name = f' class="language-{escapeHtml(language)}"' if language else ""
    return f'<pre class="highlight"{scroll}><code{name}>{body}</code></pre>\n'


@cache
def stylesheet() -> str:
    """CSS for code, light and dark by the page's `color-scheme`.

    Built from the styles themselves: `get_style_defs` knows one style at a time, and two of them would need a media
    query, which does not follow a reader's own choice of light or dark.
    """
    rules = []
    for kind, light in Light:
        name, dark = STANDARD_TYPES[kind], Dark.style_for_token(kind)
        if name and light["color"]:
            weight = ";font-weight:600" if light["bold"] else ""
            slant = ";font-style:italic" if light["italic"] else ""
            colour = f"color:#{light['color']};color:light-dark(#{light['color']},#{dark['color']})"
            rules.append(f".highlight .{name}{{{colour}{weight}{slant}}}")
    return "\n".join(rules) + "\n"
