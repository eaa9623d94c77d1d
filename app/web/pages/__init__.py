"""Pages: one module for each kind of them."""

from starlette.routing import Route

from samestep.app.web.bodies import Bodies
from samestep.app.web.offload import Offload
from samestep.app.web.pages import (
    calculators,
    chapters,
    conformance,
    experiments,
    feeds,
    reference,
    search,
    shelf,
    start,
    whole_book,
)
from samestep.app.web.pages.calculators import CalculatorPages
from samestep.app.web.pages.cards import CardPages
from samestep.app.web.pages.layout import Layout
from samestep.app.web.pages.redirects import redirects


def page_routes(layout: Layout, offload: Offload, bodies: Bodies) -> list[Route]:
    """The routes of all pages; the most specific ones first."""
    kinds = (start, reference, whole_book, feeds, conformance, calculators, shelf, experiments, search)
    return [
        *(route for kind in kinds for route in layout.routes(kind.PAGES)),
        *CalculatorPages(layout, offload, bodies).routes(),
        *CardPages(layout, offload).routes(),
        *layout.routes(chapters.PAGES),
        *redirects(layout.site),
    ]
