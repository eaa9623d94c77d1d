"""Serving: a chapter against a bare answer of the same bytes, a ledger state against a trivial JSON endpoint."""

import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from load import requests_per_second

ROOT = Path(__file__).parents[2]
CHAPTER = "/en/parallel-correctness"
ROUNDS = 3


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


@contextmanager
def process(*arguments: str, port: int, path: str = "/healthz") -> Iterator[subprocess.Popen[bytes]]:
    """A server process, waited for until it answers, ended at the end."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(Path(__file__).parent)])}
    running = subprocess.Popen([sys.executable, *arguments], cwd=ROOT, env=environment, stdout=subprocess.DEVNULL)
    try:
        for _ in range(600):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5).read()
                break
            except OSError:
                time.sleep(0.05)
        yield running
    finally:
        running.terminate()
        running.wait(15)


def main() -> None:
    ours, pages, api = free_port(), free_port(), free_port()
    with process("-m", "app", "--port", str(ours), port=ours):
        request = urllib.request.Request(f"http://127.0.0.1:{ours}{CHAPTER}", headers={"Accept-Encoding": "br"})
        with tempfile.NamedTemporaryFile(suffix=".html") as body:
            body.write(urllib.request.urlopen(request).read())
            body.flush()
            os.environ["BENCHMARK_BODY"] = body.name
            ledger = urllib.request.urlopen(f"http://127.0.0.1:{ours}/api/replica_ledger").read()
            os.environ["BENCHMARK_ANSWER"] = ledger.decode()
            with (
                process("-m", "baselines", "pages", str(pages), port=pages, path="/"),
                process("-m", "baselines", "api", str(api), port=api, path="/smallest"),
            ):
                compare(ours, pages, api)


def compare(ours: int, pages: int, api: int) -> None:
    """Rounds in turn, so that all meet the same noise; ratios of the medians."""
    asked = {
        "chapter": (ours, CHAPTER, False),
        "bare Starlette answer of the same bytes": (pages, "/", False),
        "ledger GET, every request another state": (ours, "/api/replica_ledger?b=8&a=", True),
        "trivial FastAPI endpoint, the same JSON": (api, "/same?b=8&a=", True),
        "smallest FastAPI endpoint, two numbers": (api, "/smallest?b=8&a=", True),
    }
    rates: dict[str, list[float]] = {name: [] for name in asked}
    for _ in range(ROUNDS):
        for name, (port, path, varied) in asked.items():
            headers = "" if varied else "Accept-Encoding: br\r\n"
            rates[name].append(requests_per_second(port, path, varied=varied, headers=headers))
    for name, values in rates.items():
        print(f"{name:40} {median(values):8.0f} requests/s")
    chapter, bare, ledger, same, smallest = (median(values) for values in rates.values())
    print(f"chapter ÷ bare Starlette answer of the same bytes: {chapter / bare:.2f} (goal 0.7)")
    print(f"ledger GET ÷ trivial FastAPI endpoint, the same JSON: {ledger / same:.2f} (goal 0.5)")
    print(f"ledger GET ÷ smallest FastAPI endpoint, two numbers: {ledger / smallest:.2f}")


if __name__ == "__main__":
    main()
