"""Two rules of Markdown that do not fit Chinese: where emphasis may open and close, and what a line break means.

CommonMark lets `**` open only where the text around it has spaces or punctuation in the places that Western
scripts have them, so that `**并行正确性：**每一步` stays literal. Here a Chinese character, full-width
punctuation included, is a neighbour on which emphasis may open and close as at a space.
"""

import re
from collections.abc import Sequence
from typing import Literal

from markdown_it.common.utils import isMdAsciiPunct, isPunctChar, isWhiteSpace
from markdown_it.rules_inline import StateInline
from markdown_it.rules_inline.state_inline import Delimiter
from markdown_it.token import Token

HAN = "\u2e80-\u2fdf\u3005-\u3007\u3021-\u3029\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
FULL_WIDTH = "\u3000-\u3004\u3008-\u3020\u302a-\u303f\ufe30-\ufe4f\uff00-\uffef"
_HAN_RE = re.compile(f"[{HAN}]")
_FULL_WIDTH_RE = re.compile(f"[{FULL_WIDTH}]")

_Side = Literal["space", "cjk", "punctuation", "word"]


def _side(character: str) -> _Side:
    if isWhiteSpace(ord(character)):
        return "space"
    if _HAN_RE.match(character) or _FULL_WIDTH_RE.match(character):
        return "cjk"
    if isMdAsciiPunct(ord(character)) or isPunctChar(character):
        return "punctuation"
    return "word"


def emphasis(state: StateInline, silent: bool) -> bool:
    """Inline rule for `*`, in place of the standard one; pairing stays the standard one's work."""
    if silent or state.src[state.pos] != "*":
        return False
    end = state.pos
    while end < state.posMax and state.src[end] == "*":
        end += 1
    before = _side(state.src[state.pos - 1]) if state.pos > 0 else "space"
    after = _side(state.src[end]) if end < state.posMax else "space"
    opens = after != "space" and (after != "punctuation" or before != "word")
    closes = before != "space" and (before != "punctuation" or after != "word")
    length = end - state.pos
    for _ in range(length):
        state.push("text", "", 0).content = "*"
        state.delimiters.append(Delimiter(ord("*"), length, len(state.tokens) - 1, -1, opens, closes))
    state.pos = end
    return True


def join_lines(tokens: Sequence[Token]) -> None:
    """Drop the line breaks that would show as a space between Chinese characters."""
    for block in tokens:
        children = block.children or []
        for index, token in enumerate(children):
            if token.type == "softbreak" and _no_space(_last(children[:index]), _first(children[index + 1 :])):
                token.type, token.content = "text", ""


def _no_space(before: str, after: str) -> bool:
    if _FULL_WIDTH_RE.match(before) or _FULL_WIDTH_RE.match(after):
        return True
    return bool(_HAN_RE.match(before) and _HAN_RE.match(after))


def _last(tokens: Sequence[Token]) -> str:
    return next((text[-1] for token in reversed(tokens) if (text := _text(token))), "")


def _first(tokens: Sequence[Token]) -> str:
    return next((text[0] for token in tokens if (text := _text(token))), "")


def _text(token: Token) -> str:
    return str(token.meta.get("text", "")) if token.type == "html_inline" else token.content
