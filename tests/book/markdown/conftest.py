"""A compiler with a small made-up world around it: one calculator, two experiments, two chapters."""

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from samestep.app.book.markdown.build import Context, DamagedEvidenceError
from samestep.app.book.markdown.parser import compile_markdown
from samestep.app.book.markdown.pieces import Document
from samestep.app.calculators import Calculator
from samestep.app.contract.fields import NonNegative
from samestep.app.contract.models import Inputs, Query, Result

RESULT = {"rows": [{"id": "full-batch", "max_abs_difference": 1.25e-12}, {"id": "means", "max_abs_difference": 0.31}]}


class AverageQuery(Query):
    """Two counts, their values −2 and +1."""

    a: NonNegative = Fraction(2)
    b: NonNegative = Fraction(8)


class AverageView(Result):
    grad: float | None
    exact: str
    counts: list[int]
    name: str
    converged: bool


def average(query: Any) -> AverageView:
    total = query.a + query.b
    grad = (-2 * query.a + query.b) / total if total else None
    return AverageView(
        grad=None if grad is None else float(grad),
        exact=str(grad),
        counts=[int(query.a), int(query.b)],
        name="inf" if query.a > 100 else "finite",
        converged=False,
    )


def average_of(inputs: Any, scheme: str | None = None) -> AverageView:
    return average(inputs)


@pytest.fixture(scope="session")
def calculators() -> dict[str, Calculator]:
    doors = (average, average_of, average)
    return {"average": Calculator("average", Inputs, AverageQuery, AverageView, AverageView, *doors)}


def published(name: str) -> Any:
    if name == "damaged":
        raise DamagedEvidenceError(name)
    return RESULT if name == "update" else None


Compile = Callable[..., Document]


@pytest.fixture
def compiled(calculators: dict[str, Calculator]) -> Compile:
    """Compile a text; keywords replace parts of the context."""

    def compile_text(source: str, lang: str = "zh", **changes: Any) -> Document:
        context = {
            "lang": lang,
            "calculators": calculators,
            "evidence": published,
            "experiments": frozenset({"update", "unpublished", "damaged"}),
            "chapters": frozenset({"scaling"}),
            "planned": frozenset({"later"}),
            "sources": frozenset({"paper"}),
            "link": lambda path: "/root" + path,
        }
        return compile_markdown(source + "\n", Path("20-x.md"), Context(**(context | changes)))

    return compile_text


@pytest.fixture
def html(compiled: Compile) -> Callable[..., str]:
    """The HTML of a text without mistakes; where a panel stands, `⟦name id⟧`."""

    def compile_html(source: str, lang: str = "zh", **changes: Any) -> str:
        document = compiled(source, lang, **changes)
        assert [str(mistake) for mistake in document.mistakes] == []
        return "".join(piece if isinstance(piece, str) else f"⟦{piece.name} {piece.id}⟧" for piece in document.pieces)

    return compile_html


@pytest.fixture
def mistakes(compiled: Compile) -> Callable[..., list[tuple[int, str]]]:
    """Line and reason of every mistake in a text."""

    def compile_mistakes(source: str, lang: str = "zh", **changes: Any) -> list[tuple[int, str]]:
        return [(mistake.line, mistake.reason) for mistake in compiled(source, lang, **changes).mistakes]

    return compile_mistakes
