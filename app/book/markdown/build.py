"""The state of one compilation: what it may look up, and what it finds on its way through a text."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from markdown_it.token import Token

from samestep.app.book.markdown.glossary import Finder
from samestep.app.book.markdown.pieces import CheckedNumber, Mistake, Ref, Reference
from samestep.app.calculators import Calculator
from samestep.app.contract.languages import Lang


class DamagedEvidenceError(ValueError):
    """A published result that is not what its manifest promises."""


@dataclass(frozen=True)
class Context:
    """What a text may refer to beside itself."""

    lang: Lang
    calculators: Mapping[str, Calculator]
    evidence: Callable[[str], Any]
    """The parsed `result.json` of a published experiment, or None. Raises DamagedEvidenceError."""
    experiments: frozenset[str]
    """Experiments that a fence may name, published or not."""
    chapters: frozenset[str]
    planned: frozenset[str]
    sources: frozenset[str] | None
    """Ids of the chapter's own sources; None: unknown, do not check."""
    link: Callable[[str], str]
    """Turns a path from the root of the site into the address to print."""
    terms: Finder | None = None
    """The glossary's terms, or None: link none."""
    discuss: Callable[[str], str] | None = None
    """The address where a section is discussed, by its id; None: nowhere."""
    figures: frozenset[str] = frozenset()
    """Drawn figures that a fence may name."""


_PAGE_IDS = re.compile(r"main|sources(-title)?|related-title|(source|part|row|term)-.*|fn(ref)?\d.*")


@dataclass
class Build:
    """Collects the findings of one compilation. Lines count from 1 in the whole file."""

    file: Path
    context: Context
    lines: Sequence[str]
    mistakes: list[Mistake] = field(default_factory=list)
    anchors: dict[str, int] = field(default_factory=dict)
    links: list[tuple[str, int]] = field(default_factory=list)
    """Anchors of this text that it links to."""
    equations: list[str] = field(default_factory=list)
    references: list[Reference] = field(default_factory=list)
    checked: list[CheckedNumber] = field(default_factory=list)
    refs: list[Ref] = field(default_factory=list)
    quoted: list[tuple[Token, str, dict[str, str]]] = field(default_factory=list)
    """The checked numbers of a calculator: the token, the calculator's name, the fields of the state."""
    counts: Counter[str] = field(default_factory=Counter)
    """Numbered things so far, by kind."""
    terms: list[str] = field(default_factory=list)
    """Ids of the glossary's terms that this text uses."""

    @property
    def lang(self) -> Lang:
        return self.context.lang

    def wrong(self, line: int, reason: str) -> None:
        self.mistakes.append(Mistake(self.file, line, reason))

    def anchor(self, identifier: str, line: int) -> None:
        """Note a place that links may point to; an id must be the only one of its name."""
        if _PAGE_IDS.fullmatch(identifier):
            self.wrong(line, f"the id “{identifier}” belongs to the page around the text")
        elif identifier in self.anchors:
            self.wrong(line, f"the id “{identifier}” is used already in line {self.anchors[identifier]}")
        else:
            self.anchors[identifier] = line

    def count(self, kind: str) -> int:
        self.counts[kind] += 1
        return self.counts[kind]


def line_of(token: Token, default: int = 1) -> int:
    return token.map[0] + 1 if token.map else default


def inline_tokens(tokens: Sequence[Token]) -> Iterator[tuple[Token, int]]:
    """Every token inside paragraphs, headings and cells, with its line."""
    line = 1
    for block in tokens:
        line = line_of(block, line)
        for child in block.children or ():
            yield child, line
            breaks = child.type in ("softbreak", "hardbreak")
            line += 1 if breaks else child.content.count("\n")


def raw(content: str, *, block: bool = False, **meta: str) -> Token:
    """A token that is printed as it stands; `meta` says what it means as plain text."""
    token = Token("html_block" if block else "html_inline", "", 0, content=content)
    token.meta = dict(meta)
    return token


def make_raw(token: Token, content: str, *, block: bool = False, **meta: str) -> None:
    """Turn a token into one that is printed as it stands."""
    token.type = "html_block" if block else "html_inline"
    token.content = content
    token.meta = dict(meta)
