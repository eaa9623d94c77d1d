"""What a compiled chapter is made of."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, order=True)
class Mistake:
    """Something that an author has to put right: where, and why."""

    file: Path
    line: int
    reason: str

    def __str__(self) -> str:
        """`file:line: reason`, the file as seen from the working directory where it is below it."""
        here = Path.cwd()
        file = self.file.relative_to(here) if self.file.is_relative_to(here) else self.file
        return f"{file}:{self.line}: {self.reason}"


class BookError(Exception):
    """The book cannot be built; `mistakes` lists everything that was found, not just the first."""

    def __init__(self, mistakes: Sequence[Mistake]) -> None:
        self.mistakes = tuple(sorted(set(mistakes)))
        super().__init__("\n".join(map(str, self.mistakes)))


@dataclass(frozen=True)
class CalculatorRef:
    """A place where a calculator's panel stands: its id (also the prefix of its fields) and its starting state.

    `fields` holds what the author typed, by name of the GET field; the others keep the calculator's own defaults.
    """

    name: str
    id: str
    fields: dict[str, str]
    line: int


@dataclass(frozen=True)
class EvidenceRef:
    """A place where a published experiment is shown: only these rows and keys, or all when there are none.

    The experiment may still be unpublished: the page then says so.
    """

    name: str
    id: str
    rows: tuple[str, ...]
    keys: tuple[str, ...]
    line: int


@dataclass(frozen=True)
class FigureRef:
    """A place where a drawn figure stands: a template of `templates/figures/chapters`."""

    name: str
    id: str
    line: int


Ref = CalculatorRef | EvidenceRef | FigureRef
Piece = str | Ref


@dataclass(frozen=True)
class Section:
    """A heading and the text below it, down to the next heading."""

    id: str
    level: int
    """2 for `##`, 3 for `###`."""
    title: str
    """Plain text."""
    title_html: str
    """The same with its formulas and emphasis, without links."""
    kicker: str
    text: str
    """Plain text without TeX, for search."""
    formulas: str
    """The names that occur in the section's formulas, for search."""
    children: tuple["Section", ...] = ()


@dataclass(frozen=True)
class Reference:
    """A link to another chapter of the same language, to be checked when all of them are known."""

    slug: str
    anchor: str
    line: int


@dataclass(frozen=True)
class CheckedNumber:
    """A number in the text that was recomputed: from which `source` (`calc` or `evidence` attribute), which field."""

    text: str
    source: str
    field: str
    line: int
    verified: bool = True
    """False when the evidence that it quotes is damaged: a reader must still get the page."""


@dataclass(frozen=True)
class Document:
    """A compiled Markdown text.

    `pieces` joined are the HTML of the whole text once every reference among them is replaced by its own HTML.
    """

    pieces: tuple[Piece, ...]
    lead: str
    """Plain text before the first heading."""
    sections: tuple[Section, ...]
    """The `##` headings; `###` are their children."""
    anchors: dict[str, int]
    """Every id that a link may point to, with its line."""
    equations: tuple[str, ...]
    """The ids of the numbered formulas."""
    formulas: int
    """How many display formulas there are."""
    references: tuple[Reference, ...]
    checked: tuple[CheckedNumber, ...]
    terms: tuple[str, ...]
    """Ids of the glossary's terms that the text uses; `#term-ID` is where it uses one first."""
    minutes: int
    """Reading time."""
    mistakes: tuple[Mistake, ...] = ()

    @property
    def calculators(self) -> tuple[CalculatorRef, ...]:
        return tuple(piece for piece in self.pieces if isinstance(piece, CalculatorRef))

    @property
    def evidence(self) -> tuple[EvidenceRef, ...]:
        return tuple(piece for piece in self.pieces if isinstance(piece, EvidenceRef))

    @property
    def figures(self) -> tuple[FigureRef, ...]:
        return tuple(piece for piece in self.pieces if isinstance(piece, FigureRef))
