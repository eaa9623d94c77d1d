"""The application: pages, calculators' doors, finished answers in front, and what is said when something is wrong."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import cast

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from samestep.app import __version__
from samestep.app.book.chapters import BookError
from samestep.app.contract.languages import Lang
from samestep.app.settings import Settings
from samestep.app.web.endpoints import add_api_routes
from samestep.app.web.offload import Offload
from samestep.app.web.pages.calculators import calculator_routes
from samestep.app.web.pages.chapters import Pages, page_routes, preferred
from samestep.app.web.pages.conformance import lab_routes
from samestep.app.web.pages.downloads import evidence_routes
from samestep.app.web.pages.indexes import index_routes
from samestep.app.web.ready import Front, below, security_headers
from samestep.app.web.site import Site

_WORDS: dict[int, tuple[tuple[str, str], tuple[str, str]]] = {
    404: (
        ("没有这一页", "地址可能写错了，或者这一页还没有写出来。"),
        ("There is no such page", "The address may be mistyped, or the page is not written yet."),
    ),
    413: (
        ("内容太大", "一次最多接受 64 MiB。"),
        ("This is too large", "At most 64 MiB are taken at once."),
    ),
    405: (
        ("这个地址不接受这种请求", "请用链接或表单打开它。"),
        ("This address does not take such a request", "Open it by a link or a form."),
    ),
    500: (
        ("服务器出错了", "问题不在你这边；错误已写入日志。"),
        ("Something went wrong here", "The fault is not yours; it is in the log."),
    ),
}
_OTHER = (("请求无法处理", ""), ("The request cannot be answered", ""))


def create_app(settings: Settings | None = None) -> FastAPI:
    """A server's application; BookError when a chapter is broken."""
    settings = settings or Settings.from_environment()
    site = Site.build(settings)
    offload = Offload()

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        watch = asyncio.create_task(site.watch_evidence())
        yield
        watch.cancel()
        offload.close()

    app = FastAPI(
        title="SameStep",
        version=__version__,
        description="Every calculator of the wiki, as JSON and CSV. In place of a panel's fields, GET also takes a "
        "whole body, one parameter a field: `body.FIELD=VALUE`, where VALUE is JSON, a number, a word or rows such as "
        "`2,3;8,0`; `scheme` names the scheme shown.",
        servers=[{"url": settings.root_path}] if settings.root_path else None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
    )
    doors = add_api_routes(app, offload, site.version)
    app.router.routes.extend(evidence_routes(site.evidence))
    app.router.routes.extend(index_routes(site))
    app.router.routes.extend(lab_routes(site))
    app.router.routes.extend(calculator_routes(site, offload))
    app.router.routes.extend(page_routes(site))
    health = {"status": "ok", "version": __version__}
    app.add_api_route("/healthz", lambda: health, methods=["GET", "HEAD"], include_in_schema=False)
    app.add_middleware(Front, ready=site.ready, doors=doors, root_path=settings.root_path)
    _say_errors(app, site)
    return app


def _say_errors(app: FastAPI, site: Site) -> None:
    pages = Pages(site)

    def page(request: Request, status: int, detail: str = "", headers: Mapping[str, str] | None = None) -> Response:
        path = below(request.scope["path"], site.settings.root_path)
        request = Request({**request.scope, "path": path})
        headers = dict(headers or {})
        if status == 405 and path.startswith("/api/"):
            headers["allow"] = "GET, HEAD, POST"  # the router names the methods of one route only
        if path.startswith(("/api/", "/evidence/", "/s/", "/openapi", "/healthz")):
            return JSONResponse({"detail": _WORDS.get(status, _OTHER)[1][0]}, status, headers)
        if not path.startswith(("/zh/", "/en/")):
            headers["vary"] = "accept-language"
        lang = _language(request)
        words = _WORDS.get(status, _OTHER)[lang != "zh"]
        context = pages.context(request, lang) | {
            "title": words[0],
            "description": "",
            "status": status,
            "heading": words[0],
            "detail": detail or words[1],
            "suggestions": [],
        }
        return HTMLResponse(site.render("error.html", context), status, headers)

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> Response:
        return page(request, error.status_code, headers=error.headers)

    @app.exception_handler(BookError)
    async def broken_chapter(request: Request, error: BookError) -> Response:
        """Only an author meets this: a chapter was saved with a mistake while the server runs with --reload."""
        return page(request, 500, str(error))

    @app.exception_handler(500)
    async def failed(request: Request, _: Exception) -> Response:
        headers = {name.decode(): value.decode() for name, value in security_headers()}
        return page(request, 500, headers=headers)


def _language(request: Request) -> Lang:
    first = request.scope["path"].split("/")[1]
    if first in ("zh", "en"):
        return cast(Lang, first)
    return preferred(request.headers.get("accept-language", ""))
