"""Pages: one module for each kind of them."""

from starlette.routing import Route

from samestep.app.web.bodies import Bodies
from samestep.app.web.offload import Offload
from samestep.app.web.pages.calculators import CalculatorPages
from samestep.app.web.pages.cards import CardPages
from samestep.app.web.pages.chapters import ChapterPages
from samestep.app.web.pages.conformance import ConformancePages
from samestep.app.web.pages.experiments import ExperimentPages
from samestep.app.web.pages.feeds import FeedPages
from samestep.app.web.pages.layout import Layout
from samestep.app.web.pages.reference import ReferencePages
from samestep.app.web.pages.search import SearchPages
from samestep.app.web.pages.shelf import ShelfPages
from samestep.app.web.pages.start import StartPages
from samestep.app.web.pages.whole_book import WholeBookPages


def page_routes(layout: Layout, offload: Offload, bodies: Bodies) -> list[Route]:
    """The routes of all pages; the most specific ones first."""
    shelf = ShelfPages(layout)
    return [
        *StartPages(layout).routes(),
        *ReferencePages(layout).routes(),
        *WholeBookPages(layout).routes(),
        *FeedPages(layout).routes(),
        *ConformancePages(layout).routes(),
        *CalculatorPages(layout, offload, bodies).routes(),
        *shelf.routes(),
        *ExperimentPages(layout).routes(),
        *SearchPages(layout).routes(),
        *CardPages(layout, offload).routes(),
        *ChapterPages(layout).routes(),
        *shelf.last_routes(),
    ]
