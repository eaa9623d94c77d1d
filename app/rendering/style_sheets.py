"""What each kind of page is dressed in: one file, made of the sheets in `static/css` in the order of the cascade."""

import re
from collections.abc import Callable

ORDER = (
    "tokens",
    "math-font",
    "base",
    "tables",
    "layout",
    "chapter",
    "panel",
    "fields",
    "results",
    "figures",
    "film",
    "figure-sizes",
    "boxes",
    "evidence",
    "experiments",
    "shelf",
    "lists",
    "palette",
    "first",
    "forced-colors",
    "terms",
    "glossary",
    "book",
    "code",
    "conformance",
    "grid",
    "workbench",
    "start",
    "audit",
)
"""A later sheet wins over an earlier one. On paper `print` comes after all of them."""

_WHEREVER = {"tokens", "base", "tables", "layout", "fields", "results", "figures", "figure-sizes", "forced-colors"}
_ON_THE_SITE = _WHEREVER | {"math-font", "lists", "palette"}
_INSTRUMENTS = {"panel", "boxes", "code", "film"}

KINDS: dict[str, set[str]] = {
    "page": _ON_THE_SITE | {"shelf", "glossary"},
    "shelf": _ON_THE_SITE | {"panel", "shelf", "first"},
    "start": _ON_THE_SITE | {"start", "film"},
    "reading": _ON_THE_SITE | _INSTRUMENTS | {"chapter", "evidence", "terms", "book"},
    "calculator": _ON_THE_SITE | _INSTRUMENTS | {"grid", "workbench"},
    "experiments": _ON_THE_SITE | {"boxes", "evidence", "experiments"},
    "conformance": _ON_THE_SITE | {"evidence", "conformance"},
    "audit": _WHEREVER | _INSTRUMENTS - {"code", "film"} | {"evidence", "audit"},
}
"""The sheets of a kind of page; `audit` is the report that stands without the wiki."""

_COMMENT = re.compile(r"/\*.*?\*/\n*", re.DOTALL)
_MARGIN = re.compile(r"\n\s*")


def bundle(kind: str, read: Callable[[str], str]) -> str:
    """The one sheet of a kind of page; `read` gives a sheet by name. KeyError for an unknown kind."""
    screen = "\n".join(read(name) for name in ORDER if name in KINDS[kind])
    return _MARGIN.sub("\n", _COMMENT.sub("", f"{screen}\n@media print {{\n{read('print')}}}\n"))
