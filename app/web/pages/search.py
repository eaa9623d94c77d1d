"""The page of search results."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from samestep.app.web.pages.layout import Layout


class SearchPages:
    """The handler."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._site = layout.site

    def routes(self) -> list[Route]:
        return [Route("/{lang:lang}/search", self.search)]

    async def search(self, request: Request) -> Response:
        lang, _ = self._layout.open(request)
        q = request.query_params.get("q", "").strip()
        hits = [
            {
                "lang": hit.lang,
                "chapter_title": hit.chapter_title,
                "heading": hit.heading or hit.chapter_title,
                "url": self._site.url(f"/{hit.lang}/{hit.slug}" + (f"#{hit.anchor}" if hit.anchor else "")),
                "snippet": hit.snippet,
            }
            for hit in (self._site.search.search(q, lang) if q else [])
        ]
        title = "搜索" if lang == "zh" else "Search"
        return self._layout.page(request, "search.html", title=title, description="", q=q, hits=hits)
