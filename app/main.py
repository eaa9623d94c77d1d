"""The application: pages, calculators' doors, finished answers in front, and what is said when something is wrong."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from samestep.app import __version__
from samestep.app.settings import Settings
from samestep.app.web.ahead import make_ahead
from samestep.app.web.bodies import Bodies
from samestep.app.web.endpoints import add_api_routes
from samestep.app.web.offload import Offload
from samestep.app.web.pages import page_routes
from samestep.app.web.pages.downloads import evidence_routes
from samestep.app.web.pages.errors import ErrorPages
from samestep.app.web.pages.layout import AsIs, Layout
from samestep.app.web.ready import Front
from samestep.app.web.site import Site

_SWITCH_SECONDS = 0.0005
"""So long a thread that makes a page may keep the event loop waiting, each time that it wakes: 5 ms would be felt."""


def create_app(settings: Settings | None = None) -> FastAPI:
    """A server's application; BookError when a chapter is broken."""
    settings = settings or Settings.from_environment()
    site = Site.build(settings)
    offload, bodies = Offload(), Bodies()

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        sys.setswitchinterval(_SWITCH_SECONDS)
        beside = [asyncio.create_task(site.watch_evidence())]
        if settings.ahead:
            beside.append(asyncio.create_task(make_ahead(app, site.book)))
        yield
        for task in beside:
            task.cancel()
        offload.close()
        await asyncio.to_thread(site.look_at_evidence)

    app = FastAPI(
        title="SameStep",
        version=__version__,
        description="Every calculator of the wiki, as JSON and CSV. In place of a panel's fields, GET also takes a "
        "whole body, one parameter a field: `body.FIELD=VALUE`, where VALUE is JSON, a number, a word or rows such as "
        "`2,3;8,0`; `scheme` names the scheme shown.",
        servers=[{"url": settings.root_path}] if settings.root_path else None,
        openapi_url=None,  # below, finished and compressed like every page
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
    )
    doors = add_api_routes(app, offload, bodies, site.version)
    app.router.routes.extend(evidence_routes(site.evidence))
    layout = Layout(site)

    def described(_: Layout, request: Request) -> Response:
        if (ready := site.ready.get(request.scope["path"])) is not None:  # asked for with a query
            return AsIs(ready)
        text = json.dumps(app.openapi(), ensure_ascii=False, separators=(",", ":"))
        return layout.kept(request, site.finished(text, "application/json"))

    app.router.routes.extend(layout.routes({"/openapi.json": described}))
    app.router.routes.extend(page_routes(layout, offload, bodies))
    health = {"status": "ok", "version": __version__}
    app.add_api_route("/healthz", lambda: health, methods=["GET", "HEAD"], include_in_schema=False)
    app.add_middleware(Front, ready=site.ready, doors=doors, root_path=settings.root_path)
    ErrorPages(layout).register(app)
    return app
