"""Bodies compressed for whoever can read it: brotli before gzip, which every client knows."""

import gzip
from typing import Literal

import brotli

Coding = Literal["br", "gzip"]

_QUICK: dict[Coding, int] = {"br": 4, "gzip": 5}
_SMALL: dict[Coding, int] = {"br": 9, "gzip": 9}
_REFUSED = {b"q=0", b"q=0.0", b"q=0.00", b"q=0.000"}


def accepted(header: bytes) -> Coding | None:
    """The coding to send to a client with this Accept-Encoding; None for the plain body."""
    takes: dict[bytes, bool] = {}
    for part in header.lower().split(b","):
        coding, _, weight = part.partition(b";")
        takes[coding.strip()] = weight.replace(b" ", b"") not in _REFUSED
    others = takes.get(b"*", False)
    if takes.get(b"br", others):
        return "br"
    return "gzip" if takes.get(b"gzip", takes.get(b"x-gzip", others)) else None


def compressed(body: bytes, coding: Coding, *, quick: bool = False, quality: int | None = None) -> bytes:
    """The body in that coding; `quick` for one that is sent once, `quality` for another than the usual one of brotli.

    The same body gives the same bytes: gzip's header has no time in it.
    """
    level = (_QUICK if quick else _SMALL)[coding]
    if coding == "br":
        packed: bytes = brotli.compress(body, quality=quality or level)
        return packed
    return gzip.compress(body, level, mtime=0)


def decompressed(packed: bytes) -> bytes:
    """The body that brotli has compressed."""
    body: bytes = brotli.decompress(packed)
    return body
