"""Formulas in a text: `$…$`, `$$…$$` and the environments of amsmath."""

from collections.abc import Sequence

from markdown_it.common.utils import escapeHtml
from markdown_it.token import Token

from samestep.app.book.markdown.build import Build, inline_tokens, line_of, make_raw
from samestep.app.book.markdown.math import Formula, FormulaError, convert
from samestep.app.book.markdown.mathml import equation_id
from samestep.app.book.markdown.words import word

_ROOM = 17.0
"""Width in em that a formula has on a phone of 360 px; a wider one scrolls, and must be reachable by keyboard."""


def formulas(tokens: Sequence[Token], build: Build) -> None:
    """Convert every formula; a mistake shows its source and is reported."""
    for token, line in inline_tokens(tokens):
        if token.type == "math_inline":
            _inline(token, build, line)
        elif token.type == "math_inline_double":
            build.wrong(line, "a display formula $$ … $$ needs an empty line before and after it")
            _inline(token, build, line)
    for token in tokens:
        if token.type in ("math_block", "amsmath"):
            _display(token, build, line_of(token))


def _inline(token: Token, build: Build, line: int) -> None:
    if formula := _convert(token, build, line, display=False):
        make_raw(token, formula.mathml, text=formula.text, names=formula.names)


def _display(token: Token, build: Build, line: int) -> None:
    build.count("display")
    formula = _convert(token, build, line, display=True)
    if not formula:
        return
    for identifier in formula.ids:
        build.anchor(identifier, line)
        build.equations.append(identifier)
    attrs, number = _attributes(formula, build, line)
    if given := token.attrs.get("id"):
        build.anchor(str(given), line)
        attrs = f' id="{escapeHtml(str(given))}"' + attrs if " id=" not in attrs else attrs
    html = f'<div class="eq"{attrs}>{formula.mathml}{number}</div>\n'
    make_raw(token, html, block=True, text="", names=formula.names)


def _attributes(formula: Formula, build: Build, line: int) -> tuple[str, str]:
    """The attributes of the formula's block and its number."""
    number = attrs = ""
    identifier = equation_id(formula.tag) if formula.tag else formula.label
    if identifier:
        build.anchor(identifier, line)
        attrs = f' id="{escapeHtml(identifier)}"'
    if formula.tag:
        build.equations.append(identifier)
        second = formula.label if formula.label not in ("", identifier) else ""
        if second:
            build.anchor(second, line)
        second = f' id="{escapeHtml(second)}"' if second else ""
        number = f'<a class="eqno"{second} href="#{escapeHtml(identifier)}">({escapeHtml(formula.tag)})</a>'
    if formula.width > _ROOM:
        label = word("equation", build.lang, formula.tag) if formula.tag else word("formula", build.lang)
        attrs += f' tabindex="0" role="group" aria-label="{escapeHtml(label)}"'
    return attrs, number


def _convert(token: Token, build: Build, line: int, *, display: bool) -> Formula | None:
    try:
        return convert(token.content.strip("\n") if display else token.content, display)
    except FormulaError as error:
        before = len(token.content) - len(token.content.lstrip("\n")) if display else 0
        build.wrong(line + before + error.line, f"formula: {error.reason}")
        source = f'<code class="tex-error">{escapeHtml(token.content.strip())}</code>'
        make_raw(token, f"<p>{source}</p>\n" if display else source, block=display, text=token.content)
        return None
