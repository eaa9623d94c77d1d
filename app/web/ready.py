"""Answers that are finished before they are asked for: bytes, headers, their compressed twins and their ETag."""

import hashlib
import pickle
from collections.abc import Iterable, Mapping

from starlette.concurrency import run_in_threadpool
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from samestep.app.web.compression import Coding, accepted, compressed, decompressed

Headers = list[tuple[bytes, bytes]]

_QUALITY = 5
"""Of brotli, for pages that are made while somebody waits."""

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; style-src-attr 'unsafe-inline'; img-src 'self' data:; "
    "font-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_BARE: Headers = [
    (b"content-security-policy", b"default-src 'none'; base-uri 'none'; frame-ancestors 'none'"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
]
_SECURITY: Headers = [
    (b"content-security-policy", _POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"strict-origin-when-cross-origin"),
    (b"permissions-policy", b"camera=(), microphone=(), geolocation=()"),
]


def security_headers() -> Headers:
    """Only our own scripts, styles, fonts and images; the MathML alone has style attributes."""
    return list(_SECURITY)


def data_headers() -> Headers:
    """For JSON and CSV, which load nothing."""
    return list(_BARE)


def header(scope: Scope, name: bytes) -> bytes:
    """A request header, empty when it is absent."""
    for key, value in scope["headers"]:
        if key == name:
            return value  # type: ignore[no-any-return]
    return b""


def coding_for(scope: Scope) -> Coding | None:
    """How a body may be compressed for who asks; None for not at all."""
    return accepted(header(scope, b"accept-encoding"))


def matches(scope: Scope, etag: bytes) -> bool:
    """Whether the browser already holds the answer with this tag."""
    held = header(scope, b"if-none-match")
    return bool(held) and (
        held.strip() == b"*" or etag in (tag.strip().removeprefix(b"W/") for tag in held.split(b","))
    )


def state_tag(version: bytes, kind: bytes, scope: Scope) -> bytes:
    """The ETag of a pure function of its address and the running version."""
    state = b"\0".join((version, kind, scope["path"].encode(), scope["query_string"]))
    return b'"' + hashlib.blake2b(state, digest_size=10).hexdigest().encode() + b'"'


class Ready:
    """One finished answer to GET and HEAD: compressed with brotli at once, plain or with gzip when asked for so."""

    def __init__(
        self,
        body: bytes,
        content_type: str,
        headers: Iterable[tuple[bytes, bytes]],
        *,
        compress: bool = True,
        packed: bytes | None = None,
    ) -> None:
        """`packed` is the body as brotli has compressed it before."""
        self._tag = hashlib.sha256(body).hexdigest()[:20]
        self._content_type = content_type
        self._given = list(headers)
        self._variants: dict[Coding | None, _Variant] = {}
        self._compress = compress
        self._packed = (packed or compressed(body, "br", quality=_QUALITY)) if compress else body
        self._variants[self._first] = self._variant(self._first)

    @classmethod
    def kept(cls, entry: bytes, headers: Iterable[tuple[bytes, bytes]]) -> "Ready":
        """What was an `entry` before."""
        ready = cls.__new__(cls)
        ready._content_type, ready._tag, ready._compress, ready._packed = pickle.loads(entry)
        ready._given = list(headers)
        ready._variants = {}
        ready._variants[ready._first] = ready._variant(ready._first)
        return ready

    def entry(self) -> bytes:
        """All of it but the headers, to be kept."""
        return pickle.dumps((self._content_type, self._tag, self._compress, self._packed))

    @property
    def _first(self) -> Coding | None:
        """How it is held: the other ways are made of it."""
        return "br" if self._compress else None

    def _variant(self, coding: Coding | None) -> "_Variant":
        headers = [(b"content-type", self._content_type.encode()), *self._given]
        if self._compress:
            headers.append((b"vary", b"accept-encoding"))
        tag = f'"{self._tag}-{coding}"' if coding else f'"{self._tag}"'
        body = self._packed
        if coding != self._first:
            body = decompressed(self._packed)
            body = compressed(body, coding) if coding else body
        return _Variant(body, tag.encode(), headers, coding.encode() if coding else None)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        coding = coding_for(scope) if self._compress else None
        if coding not in self._variants:
            self._variants[coding] = await run_in_threadpool(self._variant, coding)
        await self._variants[coding].send(scope, send)


class _Variant:
    def __init__(self, body: bytes, etag: bytes, shared: Headers, encoding: bytes | None) -> None:
        self._etag = etag
        self._body = {"type": "http.response.body", "body": body}
        headers = [*shared, (b"etag", etag), (b"content-length", str(len(body)).encode())]
        if encoding:
            headers.append((b"content-encoding", encoding))
        self._start = {"type": "http.response.start", "status": 200, "headers": headers}
        kept = [pair for pair in headers if pair[0] not in (b"content-length", b"content-type", b"content-encoding")]
        self._unchanged = {"type": "http.response.start", "status": 304, "headers": kept}

    async def send(self, scope: Scope, send: Send) -> None:
        if matches(scope, self._etag):
            await send(self._unchanged)
            await send({"type": "http.response.body"})
            return
        await send(self._start)
        await send({"type": "http.response.body"} if scope["method"] == "HEAD" else self._body)


def below(path: str, root_path: str) -> str:
    """A path without the root path, which a proxy may or may not have cut off."""
    root = root_path.rstrip("/")
    return path[len(root) :] or "/" if root and (path == root or path.startswith(root + "/")) else path


class Front:
    """The outermost layer: finished answers and the quick `doors` at once, everything else through the application.

    A door is an ASGI application for GET requests to one path, which sends the safe headers itself. Behind a proxy the
    root path may or may not have been cut off; here it is, so that nothing below knows of it.
    """

    def __init__(
        self, app: ASGIApp, ready: Mapping[str, Ready], doors: Mapping[str, ASGIApp], root_path: str = ""
    ) -> None:
        self._app = app
        self._ready = ready
        self._doors = doors
        self._root = root_path.rstrip("/")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = below(scope["path"], self._root)
        if path != scope["path"]:
            scope = {**scope, "path": path, "raw_path": path.encode(), "root_path": ""}
        if scope["method"] in ("GET", "HEAD"):
            ready = None if scope["query_string"] else self._ready.get(path)
            if ready is not None:
                await ready(scope, receive, send)
                return
            door = self._doors.get(path)
            if door is not None:
                await door(scope, receive, _without_body(send) if scope["method"] == "HEAD" else send)
                return

        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                present = {name for name, _ in message["headers"]}
                message["headers"] = [*message["headers"], *(pair for pair in _SECURITY if pair[0] not in present)]
            await send(message)

        await self._app(scope, receive, send_safely)


def _without_body(send: Send) -> Send:
    async def send_head(message: Message) -> None:
        await send({"type": "http.response.body"} if message["type"] == "http.response.body" else message)

    return send_head
