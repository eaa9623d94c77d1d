"""`python -m tests.hostile --requests N`: hostile requests to a server of our own, and what became of them."""

import argparse
import http.client
import json
import queue
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, urlencode, urlsplit

from tests.conftest import Server
from tests.hostile.seeds import Request
from tests.hostile.spoil import random_request

SLOW, WAITED, GROWN = 2.0, 1.0, 300_000
"""Seconds that a request may take and that a page beside it may wait; kilobytes that the server may grow."""


@dataclass
class Findings:
    """Faults, each with the request that made it; `statuses` of all answers; the longest wait of a page beside them."""

    faults: list[str] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    longest: float = 0.0
    beside: float = 0.0
    grown: int = 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.hostile", description=__doc__)
    parser.add_argument("--requests", type=int, default=2_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--connections", type=int, default=3)
    options = parser.parse_args()
    server = Server(ahead=True)
    try:
        found = attack(server, options.requests, options.seed, options.connections)
    finally:
        server.stop()
    for fault in found.faults[:50]:
        print(fault)
    print(f"{options.requests} requests: {dict(sorted(found.statuses.items()))}")
    print(
        f"longest {found.longest:.2f} s, a page beside them {found.beside:.2f} s, grown by {found.grown / 1000:.0f} MB"
    )
    print(f"{len(found.faults)} faults")
    return 1 if found.faults else 0


def attack(server: Server, requests: int, seed: int, connections: int = 3) -> Findings:
    """Send so many requests, on several connections, while a page is asked for beside them."""
    found, orders = Findings(), queue.SimpleQueue[int]()
    for number in range(requests):
        orders.put(number)
    before = resident(server)
    with _page_beside(server, found):
        workers = [threading.Thread(target=_work, args=(server, orders, seed, found)) for _ in range(connections)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    found.grown = resident(server) - before
    if found.beside > WAITED:
        found.faults.append(f"a page beside them waited {found.beside:.2f} s")
    if found.grown > GROWN:
        found.faults.append(f"the server grew by {found.grown / 1000:.0f} MB")
    if server.process.poll() is not None:
        found.faults.append(f"the server ended with {server.process.returncode}")
    return found


def _work(server: Server, orders: "queue.SimpleQueue[int]", seed: int, found: Findings) -> None:
    while True:
        try:
            number = orders.get_nowait()
        except queue.Empty:
            return
        request = random_request(random.Random(f"{seed}-{number}"))
        began = time.perf_counter()
        try:
            status, headers, body = send(server, request)
        except OSError as error:
            if server.process.poll() is not None:
                return
            found.faults.append(f"{seed}-{number} {request.path}: {type(error).__name__}: {error}")
            continue
        took = time.perf_counter() - began
        found.statuses[status] += 1
        found.longest = max(found.longest, took)
        for complaint in complaints(request, status, headers, body, took):
            found.faults.append(f"{seed}-{number} {shown(request)}: {complaint}")


def complaints(request: Request, status: int, headers: dict[str, str], body: bytes, took: float) -> Iterator[str]:
    """What is wrong with an answer."""
    if status >= 500 and not (status == 503 and "retry-after" in headers):
        yield f"answered {status}"
    if took > SLOW:
        yield f"took {took:.1f} s"
    if status == 422 and request.is_api:
        try:
            detail = json.loads(body)["detail"]
        except (ValueError, KeyError, TypeError):
            yield "a 422 without a list of errors"
            return
        if not detail or not all(each["loc"] and each["msg"] for each in detail):
            yield f"a 422 that names no field: {detail!r:.200}"
    if status == 422 and not request.is_api and not body:
        yield "an empty 422"


def send(server: Server, request: Request) -> tuple[int, dict[str, str], bytes]:
    """One request on a connection of its own."""
    place = urlsplit(server.url)
    assert place.hostname is not None
    connection = http.client.HTTPConnection(place.hostname, place.port, timeout=60)
    address = quote(request.path, safe="/%?#", errors="surrogateescape")
    if request.pairs:
        address += "?" + urlencode(request.pairs, errors="surrogatepass")
    headers = {name: value.encode("latin-1", "replace").decode("latin-1") for name, value in request.headers}
    if request.body is not None:
        headers["content-type"] = request.content_type
    try:
        connection.request("GET" if request.body is None else "POST", address[:60_000], request.body, headers)
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
    finally:
        connection.close()


def shown(request: Request) -> str:
    """A request, short enough to read and enough to repeat it by its number."""
    body = "" if request.body is None else f" {request.content_type} {request.body[:200]!r}"
    return f"{request.path}?{urlencode(request.pairs, errors='surrogatepass')[:300]}{body}"


@contextmanager
def _page_beside(server: Server, found: Findings) -> Iterator[None]:
    """A reader who opens a page again and again meanwhile."""
    done = threading.Event()

    def read() -> None:
        while not done.wait(0.05):
            began = time.perf_counter()
            send(server, Request("/en/calculators/replica_ledger", [("a", "3")]))
            found.beside = max(found.beside, time.perf_counter() - began)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield
    finally:
        done.set()
        reader.join()


def resident(server: Server) -> int:
    """Kilobytes of memory that the server and its worker hold; 0 where the system does not tell."""
    total = 0
    for process in Path("/proc").glob("[0-9]*"):
        try:
            status = (process / "status").read_text()
        except OSError:
            continue
        fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        if str(server.process.pid) in (fields.get("Pid", "").strip(), fields.get("PPid", "").strip()):
            total += int(fields.get("VmRSS", "0 kB").split()[0])
    return total


if __name__ == "__main__":
    sys.exit(main())
