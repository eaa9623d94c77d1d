"""The way in: the address without a language, the shelf of chapters, and addresses that are nearly right."""

from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from samestep.app.web.pages import languages
from samestep.app.web.pages.layout import Layout


class ShelfPages:
    """The handlers."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._site = layout.site

    def routes(self) -> list[Route]:
        return [
            Route("/", self.root),
            Route("/{lang:lang}", self.without_slash),
            Route("/{lang:lang}/", self._layout.beside(self.shelf)),
        ]

    def last_routes(self) -> list[Route]:
        """Those that catch what nothing else does."""
        return [Route("/{lang:lang}/{path:path}/", self.slash_too_many)]

    async def root(self, request: Request) -> Response:
        lang = languages.preferred(request.headers.get("accept-language", ""))
        return RedirectResponse(self._site.url(f"/{lang}/"), 307, {"vary": "accept-language"})

    async def without_slash(self, request: Request) -> Response:
        return RedirectResponse(self._site.url(f"{request.url.path.removesuffix('/')}/"), 308)

    async def slash_too_many(self, request: Request) -> Response:
        query = f"?{request.url.query}" if request.url.query else ""
        return RedirectResponse(self._site.url(quote(request.scope["path"].rstrip("/"))) + query, 308)

    def shelf(self, request: Request) -> Response:
        lang, book = self._layout.open(request)
        description = (
            "梯度缩放与并行正确性的交互式 Wiki" if lang == "zh" else "An interactive wiki on parallel correctness"
        )
        return self._layout.finished(
            request,
            "shelf.html",
            title="同一步" if lang == "zh" else "SameStep",
            description=description,
            parts=book.parts(lang),
            families=book.families(lang),
        )
