"""Chapters: their text with the panels in the state of the address and the evidence as it stands now."""

from collections.abc import Iterable
from urllib.parse import parse_qsl

from markupsafe import Markup
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from samestep.app.book.chapter import Chapter
from samestep.app.book.markdown.pieces import CalculatorRef, EvidenceRef, FigureRef
from samestep.app.calculators import registry
from samestep.app.contract.errors import FieldError
from samestep.app.contract.languages import Lang
from samestep.app.instruments.panels import Panel
from samestep.app.instruments.states import named_once
from samestep.app.web.pages.experiments import Found
from samestep.app.web.pages.layout import Layout, Pages
from samestep.app.web.site import Site


def chapter_page(layout: Layout, request: Request) -> Response:
    lang, book = layout.open(request)
    slug = request.path_params["slug"]
    chapter = book.chapter(lang, slug)
    if chapter is None:
        if slug in book.redirects:
            return RedirectResponse(layout.site.url(f"/{lang}/{book.redirects[slug]}"), 308)
        raise HTTPException(404)
    query = request.url.query
    pieces = pieces_of(layout.site, chapter, query)
    status = max((piece.status for piece in pieces if isinstance(piece, Panel)), default=200)
    body = [layout.site.panels.html(piece) if isinstance(piece, Panel) else piece for piece in pieces]
    previous, following = book.neighbours(chapter)
    context = {
        "title": chapter.title,
        "description": chapter.summary,
        "chapter": chapter,
        "part": next((part for part in book.parts(lang) if chapter in part.chapters), None),
        "body": body,
        "previous": previous,
        "next": following,
        "related": book.related(chapter),
        "place": book.chapters[lang].index(chapter) + 1,
        "places": len(book.chapters[lang]),
        "discuss_url": layout.site.settings.discuss(lang, slug, "discuss"),
    }
    if query:
        return layout.page(request, "chapter.html", status, **context)
    return layout.finished(request, "chapter.html", **context)


PAGES: Pages = {"/{lang:lang}/{slug}": chapter_page}
"""They stand behind all other pages, whose names a slug would swallow."""


def pieces_of(site: Site, chapter: Chapter, query: str) -> list[Panel | Markup]:
    """The chapter's text with its panels in the state of the address and its evidence as it stands now."""
    refs = {piece.id: piece for piece in chapter.pieces if isinstance(piece, CalculatorRef)}
    given, refusals = _given(refs, query)
    place = site.url(chapter.path)
    lang = chapter.lang
    pieces: list[Panel | Markup] = []
    for piece in chapter.pieces:
        if isinstance(piece, CalculatorRef):
            pieces.append(
                site.panels.panel(
                    lang,
                    registry()[piece.name],
                    {**piece.fields, **given[piece.id]},
                    refusals=refusals[piece.id],
                    place=f"{place}#{piece.id}",
                    identity=piece.id,
                    others=[(f"{p}.{f}", v) for p in refs if p != piece.id for f, v in given[p].items()],
                    example=piece.fields,
                )
            )
        elif isinstance(piece, EvidenceRef):
            pieces.append(evidence_of(site, piece, lang))
        elif isinstance(piece, FigureRef):
            drawn = site.render(f"figures/chapters/{piece.name}.svg", {"lang": lang, "id": piece.id})
            pieces.append(Markup(f"<figure>\n{drawn}</figure>"))
        else:
            pieces.append(Markup(piece))
    return pieces


def _given(refs: Iterable[str], query: str) -> tuple[dict[str, dict[str, str]], dict[str, tuple[FieldError, ...]]]:
    """What the address says of each panel, by its id, and what is wrong with saying it."""
    pairs: dict[str, list[tuple[str, str]]] = {id_: [] for id_ in refs}
    for name, value in parse_qsl(query, keep_blank_values=True):
        panel, _, field = name.partition(".")
        if panel in pairs and field:
            pairs[panel].append((field, value))
    read = {panel: named_once(found) for panel, found in pairs.items()}
    return {panel: fields for panel, (fields, _) in read.items()}, {panel: twice for panel, (_, twice) in read.items()}


def evidence_of(site: Site, ref: EvidenceRef, lang: Lang) -> Markup:
    """An evidence fence: the rows that it chose."""
    title = site.book.experiment(lang, ref.name) or ref.name
    context = {"lang": lang, "ref": ref, "title": title, **Found.of(site.evidence, ref.name).context()}
    return Markup(site.render("_evidence.html", context))
