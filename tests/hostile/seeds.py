"""What honest requests are made of: the doors and their fields, bodies, forms and files, pages."""

import json
import re
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from samestep.app.calculators import registry
from samestep.app.instruments.bodies import body_fields
from samestep.app.instruments.case_files import calculator_of
from samestep.app.instruments.panels import default_texts
from tests.kit import CASE_FILE, cases, the_book

Pairs = list[tuple[str, str]]

CSV_FILES = (
    "2,3\n8,0\n",
    "rank,microstep,n,g\n0,0,2,-2\n0,1,8,1\n1,0,3,1\n1,1,0,0\n",
    "rank,n\n0,2\n1,8\n",
    "rank,id,grad,param,owner,expert\n0,w,3,1,true,false\n1,w,3,1,false,false\n1,b,4,1,true,false\n",
    "param,grad\n1,2\n3,4\n",
    "rank;scaled_grads\n0;1\n1;inf\n",
)


@dataclass(frozen=True)
class Request:
    """One request, before or after it was spoiled; `body` None: a GET."""

    path: str
    pairs: Pairs = field(default_factory=list)
    body: bytes | None = None
    content_type: str = "application/json"
    headers: Pairs = field(default_factory=list)

    @property
    def is_api(self) -> bool:
        return self.path.startswith("/api/")


@cache
def bodies() -> dict[str, list[dict[str, Any]]]:
    """Bodies of every calculator, from the worked cases and from its panel's default."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in registry()}
    for case in cases().values():
        name = calculator_of(case["kind"])
        if name is not None:
            found[name].append(case["inputs"])
    for name, calculator in registry().items():
        found[name].append(calculator.query().inputs().model_dump(mode="json", exclude_unset=True, exclude_none=True))
    return found


@cache
def panel_fields(name: str) -> dict[str, str]:
    return default_texts(registry()[name])


@cache
def body_names(name: str) -> list[str]:
    return [one.address for one in body_fields(registry()[name]).values()]


@cache
def pages() -> list[str]:
    """Addresses of whole pages, in both languages."""
    chapters = [chapter.path for lang in ("zh", "en") for chapter in the_book().chapters[lang]]
    fixed = [
        "/",
        "/en/",
        "/zh/start",
        "/en/glossary",
        "/zh/calculators",
        "/en/experiments",
        "/en/conformance",
        "/zh/api",
    ]
    files = ["/sitemap.xml", "/llms.txt", "/openapi.json", "/en/feed.atom", "/evidence/info_nce.zip"]
    return [*chapters, *fixed, *files, "/evidence/info_nce/data/result.json", "/en/experiments/train_tiny"]


@cache
def panels_of_chapters() -> list[tuple[str, str, str]]:
    """(path, panel's id, calculator) of every panel in a chapter."""
    book = the_book()
    return [
        (chapter.path, ref.id, ref.name)
        for lang in ("zh", "en")
        for chapter in book.chapters[lang]
        for ref in chapter.document.calculators
    ]


def case_file() -> bytes:
    return CASE_FILE.read_bytes()


def one_case(name: str, body: dict[str, Any]) -> bytes:
    """A file with one worked case that expects something."""
    expected = {"reference": {"grad": 0.4}, "schemes.0.weight": 1}
    return json.dumps({"kind": name, "inputs": body, "expected": expected, "tolerance": {"rtol": 1e-9}}).encode()


def multipart(pairs: Pairs, file: bytes | None, boundary: str = "edge", name: str = "cells.csv") -> bytes:
    """A form as a browser sends it."""
    parts = [
        _raw(f'--{boundary}\r\nContent-Disposition: form-data; name="{key}"\r\n\r\n{value}\r\n') for key, value in pairs
    ]
    if file is not None:
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n'
        parts.append(_raw(head) + b"Content-Type: text/csv\r\n\r\n" + file + b"\r\n")
    return b"".join(parts) + f"--{boundary}--\r\n".encode()


def _raw(text: str) -> bytes:
    """As bytes, whatever the text is: what is no UTF-8 stays so."""
    return text.encode("utf-8", "surrogatepass")


NUMBER = re.compile(rb"-?[0-9]+(?:\.[0-9]+)?(?:e-?[0-9]+)?")
