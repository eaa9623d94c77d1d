"""Keep a formula on one line with what belongs to it: browsers break a line on either side of every formula.

Without this a line may start with the comma after `$c$`, or end with the bracket before it.
"""

import re
from collections.abc import Sequence

from markdown_it.token import Token

from samestep.app.book.markdown.build import raw
from samestep.app.book.markdown.cjk import FULL_WIDTH, HAN

_WORD = f"[^\\s{HAN}{FULL_WIDTH}]"
_CLOSING = "，。、；：？！）」』》〉】”’…"
_OPENING = "（「『《〈【“‘"
_AFTER = re.compile(f"(?:[{_CLOSING}]|{_WORD}{{1,8}}(?!{_WORD})[{_CLOSING}]?|[,.;:!?)\\]]+)")
_BEFORE = re.compile(f"(?:[{_OPENING}]|(?<!{_WORD}){_WORD}{{1,8}}|[(\\[]+)$")


def keep_together(tokens: Sequence[Token]) -> None:
    """Wrap every inline formula that touches punctuation or a word together with it."""
    for block in tokens:
        if any(map(_is_formula, block.children or ())):
            block.children = _glued(block.children or [])


def _is_formula(token: Token) -> bool:
    return token.type == "html_inline" and token.content.startswith("<math")


def _glued(children: Sequence[Token]) -> list[Token]:
    out: list[Token] = []
    rest = list(children)
    for index, token in enumerate(rest):
        if not _is_formula(token):
            out.append(token)
            continue
        before = _BEFORE.search(out[-1].content) if out and out[-1].type == "text" else None
        following = rest[index + 1] if index + 1 < len(rest) else None
        after = _AFTER.match(following.content) if following and following.type == "text" else None
        group = [token]
        if before:
            out[-1].content = out[-1].content[: before.start()]
            group.insert(0, Token("text", "", 0, content=before[0]))
        if after and following:
            following.content = following.content[after.end() :]
            group.append(Token("text", "", 0, content=after[0]))
        if len(group) > 1:
            group = [raw('<span style="white-space:nowrap">'), *group, raw("</span>")]
        out.extend(group)
    return out
