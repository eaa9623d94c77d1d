"""The named baselines: a bare Starlette answer and a trivial FastAPI endpoint, on the wiki's own server settings."""

import json
import os
import sys
from pathlib import Path

import uvicorn
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route


async def bare(_: Request) -> Response:
    """A bare Starlette answer: the bytes of a page, already compressed."""
    return Response(BODY, media_type="text/html", headers={"content-encoding": "br"})


async def same_answer(a: float = 2, b: float = 8):  # type: ignore[no-untyped-def]
    """A trivial FastAPI JSON endpoint: the ledger's fields, a constant of the ledger's own answer."""
    return ANSWER


async def smallest_answer(a: float = 2, b: float = 8) -> dict[str, float]:
    """The fastest FastAPI can be: a typed answer of two numbers."""
    return {"a": a, "b": b}


BODY = Path(os.environ["BENCHMARK_BODY"]).read_bytes()
ANSWER = json.loads(os.environ["BENCHMARK_ANSWER"])
pages = Starlette(routes=[Route("/", bare)])
api = FastAPI(docs_url=None, redoc_url=None)
api.get("/same")(same_answer)
api.get("/smallest")(smallest_answer)

if __name__ == "__main__":
    chosen = {"pages": pages, "api": api}[sys.argv[1]]
    uvicorn.run(
        chosen, host="127.0.0.1", port=int(sys.argv[2]), log_level="warning", access_log=False, server_header=False
    )
