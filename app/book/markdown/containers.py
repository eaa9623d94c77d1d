"""Boxes: `:::` blocks that hold Markdown, from captions to cards. A box inside a box needs fewer colons."""

import re
from collections.abc import Callable
from dataclasses import dataclass

from markdown_it.rules_core import StateCore
from markdown_it.token import Token

from samestep.app.book.markdown.build import Build, line_of, raw
from samestep.app.book.markdown.words import word

OPEN, CLOSE = "container_box_open", "container_box_close"
_PARAMS = re.compile(r"\s*([a-z]+)(?:\s+\"(.+)\")?\s*")


@dataclass(frozen=True)
class _Box:
    tag: str
    classes: str
    holds: str = ""
    """The only box that may stand directly inside."""
    inside: str = ""
    """The only box that this one may stand in."""


_BOXES = {
    "caption": _Box("figcaption", "caption"),
    "note": _Box("div", "box note"),
    "warning": _Box("div", "box warning"),
    "conclusion": _Box("div", "box conclusion"),
    "exercise": _Box("div", "box exercise"),
    "answer": _Box("details", "answer"),
    "cards": _Box("ul", "cards", holds="card"),
    "card": _Box("li", "card", inside="cards"),
    "steps": _Box("ol", "steps", holds="step"),
    "step": _Box("li", "step", inside="steps"),
}


_UNCAPTIONED = ("p", "h2", "h3", "summary", "figcaption", "")


@dataclass
class _Open:
    name: str
    box: _Box
    token: Token


def boxes(state: StateCore) -> None:
    """Core rule before the inline rule: gives every box its element, title and place."""
    build: Build = state.env["build"]
    out: list[Token] = []
    stack: list[_Open] = []
    for token in state.tokens:
        if token.type == OPEN:
            opened = _opened(build, token, stack)
            stack.append(opened)
            _start(build, opened, out)
        elif token.type == CLOSE:
            closed = stack.pop()
            token.type, token.tag = "box_close", closed.box.tag
            out.append(token)
            if closed.name == "caption":
                out.append(raw("</figure>\n", block=True))
        else:
            if stack and stack[-1].box.holds and token.level == stack[-1].token.level + 1 and token.nesting >= 0:
                holder = stack[-1]
                build.wrong(line_of(token), f"::: {holder.name} may hold only ::: {holder.box.holds}")
            out.append(token)
    state.tokens = out


def _opened(build: Build, token: Token, stack: list[_Open]) -> _Open:
    line = line_of(token)
    match = _PARAMS.fullmatch(token.info)
    name, title = (match[1], match[2] or "") if match else ("", "")
    box = _BOXES.get(name)
    if box is None:
        known = ", ".join(_BOXES)
        build.wrong(line, f'unknown box “{token.info.strip()}”: write ::: NAME or ::: NAME "Title" with one of {known}')
        box = _Box("div", "box")
    parent = stack[-1] if stack else None
    around = parent.name if parent else ""
    if box.inside and around != box.inside:
        build.wrong(line, f"::: {name} must stand directly inside ::: {box.inside}")
    elif parent and parent.box.holds and parent.box.holds != name:
        build.wrong(line, f"::: {around} may hold only ::: {parent.box.holds}")
    if not _closed(build, token, parent):
        build.wrong(line, f"::: {name} is never closed (a box around it needs more colons than it has)")
    token.meta["title"] = title
    return _Open(name, box, token)


def _closed(build: Build, token: Token, parent: _Open | None) -> bool:
    """Whether the box ends at a line of its own colons, not because the box or text around it ended."""
    end = token.map[1] if token.map else 0
    if parent and parent.token.map and parent.token.map[1] == end:
        return False
    return end < len(build.lines) and build.lines[end].strip(" >") == ":" * len(build.lines[end].strip(" >")) != ""


def _start(build: Build, opened: _Open, out: list[Token]) -> None:
    token, line = opened.token, line_of(opened.token)
    title: str = token.meta.pop("title")
    token.type, token.tag = "box_open", opened.box.tag
    token.attrSet("class", " ".join(filter(None, [opened.box.classes, str(token.attrs.get("class", ""))])))
    if opened.name == "caption":
        _start_figure(build, out, line)
    elif opened.box.holds:
        token.attrSet("role", "list")
    elif opened.name in ("note", "warning", "conclusion"):
        token.attrSet("role", "note")
    out.append(token)
    if make := _TITLES.get(opened.name):
        out.extend(make(build, opened.name, title, line))
    elif title:
        build.wrong(line, f"::: {opened.name} takes no title")


def _start_figure(build: Build, out: list[Token], line: int) -> None:
    """Open a figure before the block that the caption belongs to."""
    start = len(out) - 1
    if start < 0 or out[start].nesting == 1 or out[start].tag in _UNCAPTIONED:
        build.wrong(line, "::: caption must follow the formula, table, code or panel that it describes")
    elif out[start].nesting == -1:
        depth = -1
        while depth:
            start -= 1
            depth += out[start].nesting
    out.insert(max(start, 0), raw('<figure class="captioned">\n', block=True))


def _labelled(build: Build, name: str, title: str, line: int) -> list[Token]:
    label = word(name, build.lang, build.count(name))
    return _line("p", "box-title", label + (word("colon", build.lang) + title if title else ""), line)


def _summary(build: Build, name: str, title: str, line: int) -> list[Token]:
    return _line("summary", "", title or word(name, build.lang), line)


def _card(build: Build, name: str, title: str, line: int) -> list[Token]:
    if not title:
        build.wrong(line, 'a card needs a title: ::: card "Title"')
    return _line("p", "card-title", title, line)


def _step(build: Build, name: str, title: str, line: int) -> list[Token]:
    verb, bar, text = title.partition("|")
    if not bar or not text:
        build.wrong(line, 'a step needs a verb and a title: ::: step "COUNT|Title"')
    return [*_line("p", "step-verb", verb, line), *_line("p", "step-title", text, line)]


_TITLES: dict[str, Callable[[Build, str, str, int], list[Token]]] = {
    "note": _labelled,
    "warning": _labelled,
    "conclusion": _labelled,
    "exercise": _labelled,
    "answer": _summary,
    "card": _card,
    "step": _step,
}


def _line(tag: str, classes: str, text: str, line: int, **attrs: str) -> list[Token]:
    """A title as tokens, so that the formulas and emphasis in it are parsed like all others."""
    start, end = Token("title_open", tag, 1, block=True), Token("title_close", tag, -1, block=True)
    if classes:
        attrs = {"class": classes, **attrs}
    start.attrs = dict(attrs)
    return [start, Token("inline", "", 0, content=text, children=[], map=[line - 1, line]), end]
