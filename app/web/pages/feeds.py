"""Files for programs, with absolute addresses: the Atom feed, the sitemap, `llms.txt`."""

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from samestep.app.book import feeds
from samestep.app.calculators import registry
from samestep.app.web.pages.layout import HOST, AsIs, Layout

_UTF8 = "; charset=utf-8"


class FeedPages:
    """The handlers."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._site = layout.site

    def routes(self) -> list[Route]:
        return [
            Route("/{lang:lang}/feed.atom", self._layout.beside(self.feed)),
            Route("/sitemap.xml", self._layout.beside(self.sitemap)),
            Route("/llms.txt", self._layout.beside(self.llms)),
        ]

    def feed(self, request: Request) -> Response:
        lang, book = self._layout.open(request)
        absolute = self._absolute(request)
        return self._file(request, feeds.atom(book, lang, absolute), "application/atom+xml" + _UTF8)

    def sitemap(self, request: Request) -> Response:
        self._site.fresh()
        places = feeds.places(self._site.book, registry())
        return self._file(request, feeds.sitemap(places, self._absolute(request)), "application/xml" + _UTF8)

    def llms(self, request: Request) -> Response:
        self._site.fresh()
        words = self._site.panels.words
        calculators = {name: (words("en", name, "heading"), words("en", name, "summary")) for name in registry()}
        text = feeds.llms(self._site.book, calculators, self._absolute(request))
        return self._file(request, text, "text/plain" + _UTF8)

    def _absolute(self, request: Request) -> feeds.Absolute:
        """Addresses below the base that the settings give, else below the host that was asked."""
        base = self._site.settings.base_url
        if not base:
            host = request.headers.get("host", "")
            if not HOST.fullmatch(host):
                raise HTTPException(400)
            base = f"{request.scope['scheme']}://{host}"
        return lambda path: base + self._site.url(path)

    def _file(self, request: Request, text: str, content_type: str) -> Response:
        """Kept only when it is the same for everybody: with a base of its own, whatever host was asked."""
        ready = self._site.finished(text, content_type)
        return self._layout.kept(request, ready) if self._site.settings.base_url else AsIs(ready)
