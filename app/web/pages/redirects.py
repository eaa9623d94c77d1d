"""Addresses that are nearly right: without a language, without their slash, with one too many."""

from functools import partial
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from samestep.app.web.pages import languages
from samestep.app.web.site import Site


def redirects(site: Site) -> list[Route]:
    """They stand behind all pages: the last one catches what nothing else does."""
    return [
        Route("/", partial(_to_language, site)),
        Route("/{lang:lang}", partial(_without_slash, site)),
        Route("/{lang:lang}/{path:path}/", partial(_slash_too_many, site)),
    ]


async def _to_language(site: Site, request: Request) -> Response:
    lang = languages.preferred(request.headers.get("accept-language", ""))
    return RedirectResponse(site.url(f"/{lang}/"), 307, {"vary": "accept-language"})


async def _without_slash(site: Site, request: Request) -> Response:
    return RedirectResponse(site.url(f"{request.url.path.removesuffix('/')}/"), 308)


async def _slash_too_many(site: Site, request: Request) -> Response:
    query = f"?{request.url.query}" if request.url.query else ""
    return RedirectResponse(site.url(quote(request.scope["path"].rstrip("/"))) + query, 308)
