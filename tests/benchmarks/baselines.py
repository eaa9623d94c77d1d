"""The named baselines: a bare Starlette answer and a trivial FastAPI endpoint, on the wiki's own server settings."""

import os
import sys
from pathlib import Path

import uvicorn
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route

BODY = Path(os.environ["BENCHMARK_BODY"]).read_bytes()


async def bare(_: Request) -> Response:
    return Response(BODY, media_type="text/html", headers={"content-encoding": "br"})


api = FastAPI(docs_url=None, redoc_url=None)


@api.get("/trivial")
async def trivial(a: float = 2, b: float = 8) -> dict[str, float]:
    return {"a": a, "b": b, "sum": a + b}


app = Starlette(routes=[Route("/bare", bare), Mount("/", api)])

if __name__ == "__main__":
    uvicorn.run(
        app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning", access_log=False, server_header=False
    )
