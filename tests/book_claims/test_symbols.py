"""Every letter of the book's formulas stands in one of the two tables of symbols."""

import re

import pytest

from tests.book_claims.chapter_code import CONTENT

GREEK = (
    r"alpha|beta|gamma|delta|epsilon|varepsilon|zeta|eta|theta|iota|kappa|lambda|mu|nu|xi|pi|rho|sigma|tau|phi|varphi|chi"
    r"|psi|omega|Gamma|Delta|Theta|Lambda|Xi|Pi|Sigma|Phi|Psi|Omega"
)
_CODE = re.compile(r"```.*?```|`[^`]*`", re.DOTALL)
_FORMULA = re.compile(r"\$\$(.*?)\$\$|(?<!\\)\$([^$\n]+)\$", re.DOTALL)
_WORDS = re.compile(r"\\(?:text|operatorname|mathrm|tag)\*?\{[^{}]*\}")
_LETTER = re.compile(rf"\\(?:({GREEK})(?![A-Za-z])|[A-Za-z]+)|([A-Za-z])")


def letters(markdown: str) -> set[str]:
    """The letters that formulas are made of, without words, names of functions and commands."""
    found: set[str] = set()
    for display, inline in _FORMULA.findall(_CODE.sub("", markdown)):
        found |= {greek or latin for greek, latin in _LETTER.findall(_WORDS.sub("", display or inline))}
    return found - {""}


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_every_letter_of_a_formula_has_its_meaning_in_the_tables_of_symbols(lang: str) -> None:
    folder = CONTENT / lang
    reference = (folder / "900-sources-and-scope.md").read_text("utf-8")
    explained = letters(reference[reference.index("{#sec-symbols") : reference.index("{#sec-terms")])
    for file in sorted(folder.glob("*.md")):
        text = file.read_text("utf-8").split("+++", 2)[2]
        assert letters(text) <= explained, (file.name, letters(text) - explained)
