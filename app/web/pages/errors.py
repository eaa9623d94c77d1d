"""What is said when something is wrong: a page in the reader's language, or JSON where a program asked."""

from collections.abc import Mapping

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from samestep.app.book.markdown.pieces import BookError
from samestep.app.web.pages import languages
from samestep.app.web.pages.layout import Layout
from samestep.app.web.ready import below, security_headers

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
    408: (
        ("内容没有按时送达", "请再发送一次。"),
        ("This did not arrive in time", "Please send it again."),
    ),
    503: (
        ("现在无法计算", "服务器正忙，或这个请求算得太久。请稍后再试，或缩小它。"),
        (
            "This cannot be computed now",
            "The server is busy, or this took too long. Come again in a moment, or make it smaller.",
        ),
    ),
    500: (
        ("服务器出错了", "问题不在你这边；错误已写入日志。"),
        ("Something went wrong here", "The fault is not yours; it is in the log."),
    ),
}
_OTHER = (("请求无法处理", ""), ("The request cannot be answered", ""))
_DATA = ("/api/", "/evidence/", "/s/", "/openapi", "/healthz")


class ErrorPages:
    """What is answered in place of a page."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._site = layout.site

    def register(self, app: FastAPI) -> None:
        app.add_exception_handler(HTTPException, self._refused)
        app.add_exception_handler(BookError, self._broken_chapter)
        app.add_exception_handler(500, self._failed)

    async def _refused(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return self._page(request, error.status_code, headers=error.headers)

    async def _broken_chapter(self, request: Request, error: Exception) -> Response:
        """Only an author meets this: a chapter was saved with a mistake while the server runs with --reload."""
        return self._page(request, 500, str(error))

    async def _failed(self, request: Request, _: Exception) -> Response:
        headers = {name.decode(): value.decode() for name, value in security_headers()}
        return self._page(request, 500, headers=headers)

    def _page(
        self, request: Request, status: int, detail: str = "", headers: Mapping[str, str] | None = None
    ) -> Response:
        path = below(request.scope["path"], self._site.settings.root_path)
        request = Request({**request.scope, "path": path})
        headers = dict(headers or {})
        if status == 405 and path.startswith("/api/"):
            headers["allow"] = "GET, HEAD, POST"  # the router names the methods of one route only
        if path.startswith(_DATA):
            return JSONResponse({"detail": _WORDS.get(status, _OTHER)[1][0]}, status, headers)
        if not path.startswith(("/zh/", "/en/")):
            headers["vary"] = "accept-language"
        lang = languages.of_path(request)
        heading, usual = _WORDS.get(status, _OTHER)[lang != "zh"]
        context = self._layout.context(request, lang) | {
            "title": heading,
            "description": "",
            "status": status,
            "heading": heading,
            "detail": detail or usual,
            "suggestions": [],
        }
        return HTMLResponse(self._site.render("error.html", context), status, headers)
