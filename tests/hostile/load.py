"""`python -m tests.hostile.load`: many readers at once on a server that has just started, a heavy request beside."""

import argparse
import asyncio
import json
import sys
import time
from itertools import count
from statistics import quantiles
from urllib.parse import urlsplit

from tests.conftest import Server
from tests.hostile.__main__ import resident
from tests.hostile.seeds import pages

PAGES_P99 = 0.1
"""Seconds within which 99 of 100 pages must be there, on a machine that does nothing else."""
THINKING = 1.0
"""Seconds between two pages of one reader."""
FIRST = 5.0
"""Seconds in which the server is new: told with them and without."""
STATES = [f"/en/calculators/replica_ledger/result?a={n}&b=8" for n in range(1, 9)]


class Tally:
    """What the readers saw."""

    def __init__(self) -> None:
        self.waits: list[tuple[float, float]] = []
        """When each page was asked for, and how long it took."""
        self.errors: list[str] = []
        self.heavy: list[float] = []


async def ask(host: str, port: int, head: str, body: bytes = b"") -> tuple[int, int]:
    """Status and size of the answer to one request on a connection of its own."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(f"{head}\r\nhost: {host}\r\nconnection: close\r\naccept-encoding: br\r\n\r\n".encode() + body)
        await writer.drain()
        answer = await reader.read()
        return int(answer.split(b" ", 2)[1]), len(answer)
    finally:
        writer.close()


async def read(host: str, port: int, tally: Tally, ends: float, turn: "count[int]") -> None:
    """One reader: pages and states of a panel, one after the other."""
    addresses = [*pages(), *STATES]
    await asyncio.sleep(THINKING * (next(turn) % 97) / 97)  # they do not all begin at once
    while time.perf_counter() < ends:
        address = addresses[next(turn) % len(addresses)]
        began = time.perf_counter()
        try:
            status, size = await ask(host, port, f"GET {address} HTTP/1.1")
            if status not in (200, 307) or not size:
                tally.errors.append(f"{address}: {status}")
        except OSError as error:
            tally.errors.append(f"{address}: {error}")
        tally.waits.append((began, time.perf_counter() - began))
        await asyncio.sleep(THINKING)


async def weigh_down(host: str, port: int, body: bytes, tally: Tally, ends: float) -> None:
    """A ledger of 1,000,000 cells, again and again."""
    while time.perf_counter() < ends:
        began = time.perf_counter()
        head = f"POST /api/replica_ledger HTTP/1.1\r\ncontent-length: {len(body)}"
        status, _ = await ask(host, port, head, body)
        tally.heavy.append(time.perf_counter() - began)
        if status not in (200, 422, 503):
            tally.errors.append(f"heavy: {status}")


async def load(server: Server, connections: int, seconds: float) -> Tally:
    place = urlsplit(server.url)
    assert place.hostname is not None
    assert place.port is not None
    body = json.dumps({"columns": {"n": [[1, 2] * 500] * 1000, "g": [[1.5, -2] * 500] * 1000}}).encode()
    tally, ends, turn = Tally(), time.perf_counter() + seconds, count()
    readers = [read(place.hostname, place.port, tally, ends, turn) for _ in range(connections)]
    await asyncio.gather(*readers, weigh_down(place.hostname, place.port, body, tally, ends))
    return tally


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.hostile.load", description=__doc__)
    parser.add_argument("--connections", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60)
    options = parser.parse_args()
    pages()  # read now, so that readers are there at the first moment
    began = time.perf_counter()
    server = Server(ahead=True)
    try:
        print(f"started in {time.perf_counter() - began:.1f} s")
        before = resident(server)
        tally = asyncio.run(load(server, options.connections, options.seconds))
        after = resident(server)
    finally:
        server.stop()
    print(f"{len(tally.waits)} pages, {len(tally.errors)} errors {tally.errors[:5]}")
    first = min(when for when, _ in tally.waits)
    p99 = told("all", [wait for _, wait in tally.waits])
    told(f"without the first {FIRST:.0f} s", [wait for when, wait in tally.waits if when > first + FIRST])
    print(f"{len(tally.heavy)} heavy requests beside them, longest {max(tally.heavy):.2f} s")
    print(f"memory {before / 1000:.0f} MB before, {after / 1000:.0f} MB after")
    return 1 if tally.errors or p99 > PAGES_P99 else 0


def told(which: str, waits: list[float]) -> float:
    """Print how long pages took; returns the 99th percentile."""
    cuts = quantiles(waits, n=100)
    print(f"{which}: p50 {cuts[49] * 1000:.0f} ms, p99 {cuts[98] * 1000:.0f} ms, longest {max(waits):.2f} s")
    return cuts[98]


if __name__ == "__main__":
    sys.exit(main())
