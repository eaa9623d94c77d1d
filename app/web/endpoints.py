"""The JSON and CSV doors of every calculator, as FastAPI routes.

FastAPI describes them (the OpenAPI document comes from the calculators' own models); the answers themselves are made
by `answers`, below FastAPI's own parsing: exact numbers are read once, errors are said once, and a large body never
blocks the event loop.
"""

import json
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Query
from fastapi.routing import APIRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from samestep.app.calculators import Calculator, registry
from samestep.app.instruments import answers
from samestep.app.instruments.answers import Answer
from samestep.app.web.bodies import Bodies, BodyError, GoneError, retry_after
from samestep.app.web.offload import Offload, OffloadError
from samestep.app.web.ready import data_headers, header, matches, state_tag

_LARGE_BODY = 32 * 1024
_LARGE_QUERY = 1_500
_SAFE = data_headers()
_FRESH = [(b"cache-control", b"public, max-age=60"), (b"vary", b"accept"), *_SAFE]

_ERROR_LIST = {"description": "The input is refused; `loc` names the field"}
_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/csv": {"schema": {"type": "string"}}}},
    408: {"description": "The body did not arrive in time"},
    413: {"description": "The body is larger than 64 MiB"},
    422: _ERROR_LIST,
    503: {
        "description": "The server is busy, or this took too long; Retry-After says when to come again",
    },
}


def add_api_routes(app: FastAPI, offload: Offload, bodies: Bodies, version: str) -> dict[str, ASGIApp]:
    """`GET` and `POST /api/NAME` for every calculator; returns the GET doors by path.

    `version` names the running code, for ETags.
    """
    doors: dict[str, ASGIApp] = {}
    for name, calculator in registry().items():
        doors[f"/api/{name}"] = _GetDoor(name, offload, version)
        for method, described, door, model, summary in (
            ("GET", _described_get, doors[f"/api/{name}"], calculator.view, "the state of the panel"),
            ("POST", _described_post, _PostDoor(name, offload, bodies), calculator.result, "the general case"),
        ):
            app.router.add_api_route(
                f"/api/{name}",
                described(calculator),
                methods=[method],
                tags=[name],
                operation_id=f"{method.lower()}_{name}",
                summary=f"{name}: {summary}",
                description=calculator.compute.__doc__,
                response_model=model,
                responses=_RESPONSES,
                route_class_override=_route(door),
            )
    return doors


_Format = Annotated[Literal["json", "csv"], Query(description="json, or the result tables as csv")]


def _described_get(calculator: Calculator) -> Any:
    async def get(query: Any) -> Any:
        raise NotImplementedError  # the route answers by its door

    get.__annotations__["query"] = Annotated[calculator.query, Query()]
    return get


def _described_post(calculator: Calculator) -> Any:
    async def post(body: Any, format: _Format = "json") -> Any:
        raise NotImplementedError  # the route answers by its door

    post.__annotations__["body"] = calculator.inputs
    return post


def _route(door: ASGIApp) -> type[APIRoute]:
    class DoorRoute(APIRoute):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            self.app = door

    return DoorRoute


class _GetDoor:
    def __init__(self, name: str, offload: Offload, version: str) -> None:
        self._name = name
        self._offload = offload
        self._version = version.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        query, wants_csv = scope["query_string"], _accepts_csv(scope)
        etag = state_tag(self._version, b"csv" if wants_csv else b"json", scope)
        if matches(scope, etag):
            await _send(send, 304, [(b"etag", etag), *_FRESH])
            return
        text = query.decode("latin-1")
        if len(query) > _LARGE_QUERY:
            answer = await self._offloaded(text, wants_csv)
        else:
            answer = answers.get(self._name, text, wants_csv)
        extra = [(b"etag", etag), *_FRESH] if answer.status == 200 else [*_SAFE, *_retry(answer.status)]
        await send_answer(send, answer, extra)

    async def _offloaded(self, query: str, wants_csv: bool) -> Answer:
        try:
            return await self._offload.run(answers.get, self._name, query, wants_csv)
        except OffloadError as error:
            return _unanswered(503, error.code, "query", error.en)


class _PostDoor:
    def __init__(self, name: str, offload: Offload, bodies: Bodies) -> None:
        self._name = name
        self._offload = offload
        self._bodies = bodies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with self._bodies.body(scope, receive) as body:
                answer = await self._answer(scope, body)
        except GoneError:
            return
        except BodyError as error:
            answer = _unanswered(error.status, error.code, "body", error.en)
            await send_answer(send, answer, [(b"connection", b"close"), *_retry(error.status)])
            return
        await send_answer(send, answer, [(b"cache-control", b"no-store"), *_retry(answer.status)])

    async def _answer(self, scope: Scope, body: bytes) -> Answer:
        query, wants_csv = scope["query_string"].decode("latin-1"), _accepts_csv(scope)
        if len(body) <= _LARGE_BODY:
            return answers.post(self._name, query, body, wants_csv)
        try:
            return await self._offload.run(answers.post, self._name, query, body, wants_csv)
        except OffloadError as error:
            return _unanswered(503, error.code, "body", error.en)


def _unanswered(status: int, code: str, door: str, message: str) -> Answer:
    """Why there is no answer, in FastAPI's form."""
    detail = [{"type": code, "loc": [door], "msg": message, "input": None}]
    return Answer(status, answers.JSON, json.dumps({"detail": detail}).encode())


def _retry(status: int) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode()) for name, value in retry_after(status).items()]


def _accepts_csv(scope: Scope) -> bool:
    return header(scope, b"accept").startswith(b"text/csv")


async def send_answer(send: Send, answer: Answer, extra: list[tuple[bytes, bytes]]) -> None:
    kind = [(b"content-type", answer.content_type.encode()), (b"content-length", str(len(answer.body)).encode())]
    await _send(send, answer.status, [*kind, *extra], answer.body)


async def _send(send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes = b"") -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
