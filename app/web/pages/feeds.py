"""Files for programs, with absolute addresses: the Atom feed, the sitemap, `llms.txt`."""

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from samestep.app.book import feeds
from samestep.app.calculators import registry
from samestep.app.web.pages.layout import HOST, AsIs, Layout, Pages

_UTF8 = "; charset=utf-8"


def feed(layout: Layout, request: Request) -> Response:
    lang, book = layout.open(request)
    absolute = _absolute(layout, request)
    return _file(layout, request, feeds.atom(book, lang, absolute), "application/atom+xml" + _UTF8)


def sitemap(layout: Layout, request: Request) -> Response:
    layout.site.fresh()
    places = feeds.places(layout.site.book, registry())
    return _file(layout, request, feeds.sitemap(places, _absolute(layout, request)), "application/xml" + _UTF8)


def llms(layout: Layout, request: Request) -> Response:
    layout.site.fresh()
    words = layout.site.panels.words
    calculators = {name: (words("en", name, "heading"), words("en", name, "summary")) for name in registry()}
    text = feeds.llms(layout.site.book, calculators, _absolute(layout, request))
    return _file(layout, request, text, "text/plain" + _UTF8)


PAGES: Pages = {
    "/{lang:lang}/feed.atom": feed,
    "/sitemap.xml": sitemap,
    "/llms.txt": llms,
}


def _absolute(layout: Layout, request: Request) -> feeds.Absolute:
    """Addresses below the base that the settings give, else below the host that was asked."""
    base = layout.site.settings.base_url
    if not base:
        host = request.headers.get("host", "")
        if not HOST.fullmatch(host):
            raise HTTPException(400)
        base = f"{request.scope['scheme']}://{host}"
    return lambda path: base + layout.site.url(path)


def _file(layout: Layout, request: Request, text: str, content_type: str) -> Response:
    """Kept only when it is the same for everybody: with a base of its own, whatever host was asked."""
    ready = layout.site.finished(text, content_type)
    return layout.kept(request, ready) if layout.site.settings.base_url else AsIs(ready)
