"""What tests share: the checkout, the book that is read once, and the worked cases."""

import json
from functools import cache
from pathlib import Path
from typing import Any

from samestep.app.book.chapters import Book, load_book

ROOT = Path(__file__).resolve().parents[1]
CONTENT = ROOT / "content"
CASE_FILE = ROOT / "tests" / "cases.json"


@cache
def the_book() -> Book:
    """The book of this checkout, read once for all tests of a process that only look at it."""
    return load_book()


@cache
def cases(kind: str | None = None) -> dict[str, dict[str, Any]]:
    """The worked cases by id, all or those of one kind."""
    listed = json.loads(CASE_FILE.read_text("utf-8"))["cases"]
    return {case["id"]: case for case in listed if kind in (None, case["kind"])}
