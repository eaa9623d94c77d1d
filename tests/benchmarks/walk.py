"""From an address to a painted cell: which of our modules one request for a result walks through, and how often.

    python tests/benchmarks/walk.py [ADDRESS]

Counts calls of functions of ours (compiled templates are the calculator's own, and not counted) while a warm server
answers one request in this process, and how often the walk goes from one module to another.
"""

import asyncio
import itertools
import sys
import threading
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
ADDRESS = "/en/calculators/replica_ledger/result?a=2&b=8"


class Walk:
    """The calls of one request, in order, by module."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []

    def note(self, frame: FrameType, event: str, _: object) -> None:
        name = str(frame.f_globals.get("__name__", ""))
        if event == "call" and name.startswith("samestep."):
            self.calls.append((name.removeprefix("samestep.app."), frame.f_code.co_qualname))

    @property
    def switches(self) -> int:
        modules = [module for module, _ in self.calls]
        return sum(a != b for a, b in itertools.pairwise(modules))


async def answered(app: Any, address: str) -> int:
    """The status of one GET request."""
    path, _, query = address.partition("?")
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": [(b"host", b"127.0.0.1")],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
        "root_path": "",
    }
    statuses: list[int] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    await app(scope, receive, send)
    return statuses[0]


def walked(address: str = ADDRESS) -> Walk:
    """The walk of a request to a warm server."""
    from samestep.app.main import create_app
    from samestep.app.settings import Settings

    app = create_app(Settings())
    walk = Walk()

    async def run() -> None:
        await answered(app, address.replace("b=8", "b=9"))  # templates and caches are warm, the state is new
        walk.calls.clear()
        status = await answered(app, address)
        assert status == 200, status

    for profile in (threading.setprofile, sys.setprofile):  # a page may be made in a thread
        profile(walk.note)
    try:
        asyncio.run(run())
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return walk


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / ".src"))
    found = walked(*sys.argv[1:2])
    counts = Counter(module for module, _ in found.calls)
    for module in dict.fromkeys(module for module, _ in found.calls):
        print(f"{counts[module]:5}  {module}")
    print(f"{len(found.calls)} calls in {len(counts)} modules, {found.switches} switches between them")
