"""Serving: a chapter against a bare answer of the same bytes, a ledger state against a trivial JSON endpoint."""

import os
import socket
import subprocess
import sys
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
    ours, bare = free_port(), free_port()
    with process("-m", "app", "--port", str(ours), port=ours):
        request = urllib.request.Request(f"http://127.0.0.1:{ours}{CHAPTER}", headers={"Accept-Encoding": "br"})
        body = Path(os.environ.get("TMPDIR", "/tmp")) / f"samestep-benchmark-{os.getpid()}.html"
        body.write_bytes(urllib.request.urlopen(request).read())
        os.environ["BENCHMARK_BODY"] = str(body)
        try:
            with process("-m", "baselines", str(bare), port=bare, path="/bare"):
                compare(ours, bare)
        finally:
            body.unlink()


def compare(ours: int, bare: int) -> None:
    """Rounds in turn, so that both meet the same noise; ratios of the medians."""
    rates: dict[str, list[float]] = {}
    for _ in range(ROUNDS):
        for name, port, path, varied in (
            ("chapter", ours, CHAPTER, False),
            ("bare Starlette answer, same bytes", bare, "/bare", False),
            ("ledger GET, another state each", ours, "/api/replica_ledger?b=8&a=", True),
            ("trivial FastAPI JSON endpoint", bare, "/trivial?b=8&a=", True),
        ):
            headers = "Accept-Encoding: br\r\n" if "api" not in path else ""
            rates.setdefault(name, []).append(requests_per_second(port, path, varied=varied, headers=headers))
    for name, values in rates.items():
        print(f"{name:36} {median(values):8.0f} requests/s")
    for (one, first), (other, second) in zip(list(rates.items())[::2], list(rates.items())[1::2], strict=True):
        print(f"{one} ÷ {other}: {median(first) / median(second):.2f}")


if __name__ == "__main__":
    main()
