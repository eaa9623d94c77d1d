"""Requests per second of a local server: keep-alive connections, each asking again as soon as it is answered."""

import asyncio
import multiprocessing
import time
from collections.abc import Callable
from itertools import count


class _Asker(asyncio.Protocol):
    """One connection. Counts answers by their content length; the next request goes out when one is complete."""

    def __init__(self, address: Callable[[int], str], ticket: "count[int]", done: list[int], headers: str) -> None:
        self.address, self.ticket, self.done, self.headers = address, ticket, done, headers
        self.buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]
        self.ask()

    def ask(self) -> None:
        path = self.address(next(self.ticket))
        self.transport.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{self.headers}\r\n".encode())

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        head, separator, body = self.buffer.partition(b"\r\n\r\n")
        if not separator:
            return
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(head.decode())
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        if len(body) >= length:
            self.buffer = b""
            self.done[0] += 1
            self.ask()


def _ask(
    port: int, path: str, varied: bool, headers: str, seconds: float, answer: "multiprocessing.Queue[float]"
) -> None:
    """In a process of its own: ask for `seconds`; with `varied`, every request for another state."""

    async def run() -> None:
        done = [0]
        ticket = count(1)
        address = (lambda i: f"{path}{i}") if varied else (lambda i: path)
        loop = asyncio.get_running_loop()
        asked = [
            await loop.create_connection(lambda: _Asker(address, ticket, done, headers), "127.0.0.1", port)
            for _ in range(8)
        ]
        await asyncio.sleep(0.5)
        before, start = done[0], time.perf_counter()
        await asyncio.sleep(seconds)
        answer.put((done[0] - before) / (time.perf_counter() - start))
        for transport, _ in asked:
            transport.abort()

    try:
        import uvloop

        uvloop.run(run())
    except ImportError:
        asyncio.run(run())


def requests_per_second(port: int, path: str, *, varied: bool = False, headers: str = "", seconds: float = 3) -> float:
    """What 8 connections from another process get answered; raises when any answer is not 200."""
    answer: multiprocessing.Queue[float] = multiprocessing.get_context("spawn").Queue()
    process = multiprocessing.get_context("spawn").Process(
        target=_ask, args=(port, path, varied, headers, seconds, answer)
    )
    process.start()
    try:
        return answer.get(timeout=seconds + 30)
    finally:
        process.join(5)
        process.kill()
