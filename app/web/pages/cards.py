"""Preview cards: the picture of a state beside its page, at the page's address with `/card.png` behind it."""

from collections import OrderedDict
from urllib.parse import parse_qsl

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from samestep.app.calculators import registry
from samestep.app.cards.answer import Shown, shown_in
from samestep.app.cards.drawing import Card, png_of, svg_of
from samestep.app.cards.fonts import card_fonts
from samestep.app.cards.style import figure_style, variables
from samestep.app.contract.errors import RefusedError
from samestep.app.instruments.first_answer import fields_in, first_answer
from samestep.app.instruments.panels import Panel
from samestep.app.instruments.states import shown
from samestep.app.paths import folder
from samestep.app.web.bodies import retry_after
from samestep.app.web.offload import Offload, OffloadError
from samestep.app.web.pages.chapters import pieces_of
from samestep.app.web.pages.layout import Layout

KEPT = 256
"""So many pictures are kept: some 10 MB."""
_HEADERS = {"cache-control": "public, max-age=86400"}


class CardPages:
    """The handlers; the worker draws, so that nobody's page waits for a picture."""

    def __init__(self, layout: Layout, offload: Offload) -> None:
        self._layout = layout
        self._site = layout.site
        self._offload = offload
        self._kept: OrderedDict[str, bytes] = OrderedDict()

    def routes(self) -> list[Route]:
        return [
            Route("/{lang:lang}/card.png", self.card),
            Route("/{lang:lang}/calculators/{name}/card.png", self.card),
            Route("/{lang:lang}/{slug}/card.png", self.card),
        ]

    async def card(self, request: Request) -> Response:
        """The picture; 404 where there is no such page, its state is refused, or there is none to be drawn."""
        key = f"{request.url.path}?{request.url.query}"
        picture = self._kept.get(key)
        if picture is None:
            svg = await run_in_threadpool(self._svg, request)
            try:
                picture = await self._offload.run(png_of, svg, card_fonts())
            except OffloadError:
                raise HTTPException(503, headers=retry_after(503)) from None
            except ValueError:  # what resvg says of a drawing that it cannot read
                raise HTTPException(404) from None
            self._kept[key] = picture
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        else:
            self._kept.move_to_end(key)
        return Response(picture, 200, _HEADERS, "image/png")

    def _svg(self, request: Request) -> str:
        css = folder("static") / "css"
        return svg_of(self._card(request), card_fonts(), figure_style(css), variables(css))

    def _card(self, request: Request) -> Card:
        lang, book = self._layout.open(request)
        query = request.url.query
        pairs = parse_qsl(query, keep_blank_values=True)
        if "name" in request.path_params:
            calculator = registry().get(request.path_params["name"])
            if calculator is None:
                raise HTTPException(404)
            panel = self._site.panels.result_panel(lang, shown(calculator, pairs))
            title = self._site.panels.words(lang, calculator.name, "heading")
            return Card(lang, title, self._shown(panel))
        if "slug" in request.path_params:
            chapter = book.chapter(lang, request.path_params["slug"])
            if chapter is None:
                raise HTTPException(404)
            panels = [piece for piece in pieces_of(self._site, chapter, query) if isinstance(piece, Panel)]
            asked = [panel for panel in panels if any(name.startswith(panel.prefix) for name, _ in pairs)]
            first = next(iter(asked or panels), None)
            return Card(lang, chapter.title, self._shown(first) if first else Shown(chapter.summary, "", (), ""))
        try:
            first_state = first_answer(fields_in(dict(pairs)))
        except RefusedError:
            raise HTTPException(404) from None
        html = self._site.render("_first_answer_result.html", {"lang": lang, "first": first_state})
        return Card(lang, "1 → P × K", shown_in(html))

    def _shown(self, panel: Panel) -> Shown:
        if panel.view is None:
            raise HTTPException(404)
        return shown_in(self._site.panels.result(panel))
