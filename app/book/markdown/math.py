"""TeX to MathML by math-core, with its traps set aside.

What the converter does not know or draws badly in Chromium is rewritten here or refused by name. Positions stay on
their lines: nothing that is cut out of a formula takes a line break with it.
"""

import re
from dataclasses import dataclass
from functools import lru_cache
from xml.etree import ElementTree

from math_core import LatexError, LatexToMathML

from samestep.app.book.markdown.mathml import link_rows, mend_accents, names, plain, width

_MACROS = {"substack": r"\begin{subarray}{c}#1\end{subarray}", "mbox": r"\text{#1}", "mathds": r"\mathbb{#1}"}

_AVOID = {
    "boxed": "Chromium does not draw it",
    "cancel": "Chromium does not draw it",
    "bcancel": "Chromium does not draw it",
    "xcancel": "Chromium does not draw it",
    "xrightarrow": r"Chromium does not stretch it: write \overset{…}{\longrightarrow}",
    "xleftarrow": r"Chromium does not stretch it: write \overset{…}{\longleftarrow}",
    "overrightarrow": r"Chromium does not stretch it: write \mathbf or \vec",
    "color": "a fixed colour is unreadable in dark mode",
    "textcolor": "a fixed colour is unreadable in dark mode",
    "colorbox": "a fixed colour is unreadable in dark mode",
    "eqref": "link to the formula in the text: [(1)](#eq-1)",
    "ref": "link to the formula in the text: [(1)](#eq-1)",
}
_COMMAND = re.compile(r"\\([a-zA-Z]+)")
_WIDE_ACCENT = re.compile(r"\\wide(?:hat|tilde)\s*\{((?:[^{}]|\{[^{}]*\})*)\}")
_ACCENTED = re.compile(r"\\(?:math[a-z]+|bold(?:symbol)?)\b|[\s{}]")
_SYMBOL = re.compile(r"\\[a-zA-Z]+|\S")
_TAG = re.compile(r"\\tag\*?\s*\{((?:[^{}]|\{[^{}]*\})*)\}")
_LABEL = re.compile(r"\\label\s*\{([^{}]*)\}")
_EQUATION = re.compile(r"\s*\\begin\{equation\*?\}(.*)\\end\{equation\*?\}\s*", re.DOTALL)
_NUMBERED = re.compile(r"\\begin\{(align|gather|alignat|flalign|multline|eqnarray)\}")
_INNER = re.compile(r"\\begin\{(aligned|cases|subarray|[a-zA-Z]?matrix|array)\}.*?\\end\{\1\}", re.DOTALL)
_ROW_SPACE = re.compile(r"\\\\\s*\[[^\]]*\]")
_ERROR = re.compile(r"(\d+): (.*)", re.DOTALL)


class FormulaError(ValueError):
    """A formula that cannot be shown: the reason, and its line counted from 0 at the formula's start."""

    def __init__(self, reason: str, line: int = 0) -> None:
        super().__init__(reason)
        self.reason = reason
        self.line = line


@dataclass(frozen=True)
class Formula:
    """A converted formula."""

    mathml: str
    tag: str
    """What stands in brackets beside it; empty when unnumbered or numbered row by row."""
    label: str
    ids: tuple[str, ...]
    """Ids inside `mathml` (rows of an align with tags of their own)."""
    text: str
    """Its characters in reading order, without styles."""
    names: str
    """The symbols and indexed names in it, for search."""
    width: float
    """A rough upper estimate of its width in em."""


@lru_cache(maxsize=8192)
def convert(tex: str, display: bool) -> Formula:
    """Convert one formula. Raises FormulaError."""
    source, tag, label = _prepare(tex) if display else (tex, "", "")
    _refuse(tex, source, display)
    try:
        mathml = _converter().convert_with_local_state(source, displaystyle=display)
    except LatexError as error:
        place = _ERROR.fullmatch(str(error))
        offset, reason = (int(place[1]), place[2]) if place else (0, str(error))
        raise FormulaError(reason, source[:offset].count("\n")) from None
    tree = ElementTree.fromstring(mathml.replace("&ApplyFunction;", "\N{FUNCTION APPLICATION}"))
    mend_accents(tree)
    ids = link_rows(tree)
    mathml = ElementTree.tostring(tree, encoding="unicode", short_empty_elements=False)
    return Formula(mathml, tag, label, ids, plain("".join(tree.itertext())), names(tree), width(tree))


@lru_cache(maxsize=1)
def _converter() -> LatexToMathML:
    return LatexToMathML(macros=_MACROS, allow_unreliable_rendering=True, fancy_error=False)


def _prepare(tex: str) -> tuple[str, str, str]:
    """The source for the converter, the tag and the label that were cut out of it."""
    tag = label = ""
    if equation := _EQUATION.fullmatch(tex):
        tex = tex.replace(tex[: equation.start(1)], " " + "\n" * tex[: equation.start(1)].count("\n"), 1)
        tex = tex[: tex.rindex("\\end{equation")]
    if not _NUMBERED.search(tex):
        tags, labels = _TAG.findall(tex), _LABEL.findall(tex)
        if len(tags) > 1 or len(labels) > 1:
            raise FormulaError("has more than one \\tag or \\label: number rows with align, or the formula once")
        tag, label = "".join(tags).strip("$ "), "".join(labels)
        tex = _LABEL.sub(" ", _TAG.sub(" ", tex))
    tex = tex.replace("{split}", "{aligned}")
    return _ROW_SPACE.sub(lambda m: r"\\" + "\n" * m[0].count("\n"), tex), tag, label


def _refuse(tex: str, source: str, display: bool) -> None:
    """Raise for what the converter accepts and readers would see broken."""
    if not source.strip():
        raise FormulaError("the formula is empty")
    for command in _COMMAND.finditer(tex):
        if reason := _AVOID.get(command[1]):
            raise FormulaError(f"avoid \\{command[1]}: {reason}", tex[: command.start()].count("\n"))
    for accent in _WIDE_ACCENT.finditer(tex):
        if len(_SYMBOL.findall(_ACCENTED.sub("", accent[1]))) > 1:
            line = tex[: accent.start()].count("\n")
            raise FormulaError(f"avoid {accent[0]}: Chromium stretches the accent over one symbol only", line)
    if not display and (_TAG.search(tex) or _LABEL.search(tex)):
        raise FormulaError("\\tag and \\label belong to display formulas, $$ … $$")
    if "\\\\" in source and "\\begin" not in source and "\\substack" not in source:
        line = source[: source.index("\\\\")].count("\n")
        raise FormulaError("a line break \\\\ needs an environment such as aligned", line)
    numbered = _NUMBERED.search(source)
    if numbered and _unnumbered_rows(source):
        reason = f"every row of {numbered[1]} needs \\tag{{…}} or \\notag; for no numbers write aligned"
        raise FormulaError(reason, source[: numbered.start()].count("\n"))


def _unnumbered_rows(source: str) -> bool:
    rows = [row for row in _INNER.sub("", source).split("\\\\") if row.replace("\\end", "").strip()]
    return any(not re.search(r"\\(tag|notag|nonumber)\b", row) for row in rows)
