"""What tests share: the checkout, the book that is read once, calculators as a client asks them, the worked cases, and
pages as trees.

`tree` parses fast and forgives; where the HTML itself is judged, tests parse it as the standard says, with html5lib.
"""

import fcntl
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from random import Random
from typing import Any

import lxml.html
from pydantic import ValidationError

from samestep.app.book.chapters import Book, load_book
from samestep.app.calculators import registry
from samestep.app.contract.errors import FieldError, InputError, refused
from samestep.app.contract.models import Result
from samestep.app.paths import cache_folder, folder

ROOT = Path(__file__).resolve().parents[1]
CONTENT = ROOT / "content"
CASE_FILE = ROOT / "tests" / "cases.json"
INSTRUMENT_CASE_FILE = ROOT / "tests" / "instrument-cases.json"

Answer = dict[str, Any]
Body = dict[str, Any]


@contextmanager
def compiling() -> Iterator[None]:
    """The first process compiles and keeps what it compiled; those that begin beside it wait for that."""
    cache_folder().mkdir(parents=True, exist_ok=True)
    with (cache_folder() / "tests.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@cache
def the_book() -> Book:
    """The book of this checkout, read once for all tests of a process that only look at it."""
    with compiling():
        return load_book(cache=cache_folder() / "chapters")


def lay_out_first_chapter(content: Path) -> Path:
    """A content folder with the book's first chapter alone, which compiles at once; gives back its English file.

    Other chapters that it names are planned ones here; it shows no evidence, and terms of the glossary lead nowhere.
    """
    content.mkdir(parents=True)
    for file in folder("content").glob("*.toml"):
        if file.name != "glossary.toml":
            shutil.copy(file, content)
    for file in folder("content").glob("*/10-*.md"):
        (content / file.parent.name).mkdir()
        shutil.copy(file, content / file.parent.name)
    return next((content / "en").glob("*.md"))


@cache
def cases(kind: str | None = None) -> dict[str, Body]:
    """The worked cases by id, all or those of one kind."""
    listed = json.loads(CASE_FILE.read_text("utf-8"))["cases"]
    return {case["id"]: case for case in listed if kind in (None, case["kind"])}


def instrument_cases() -> list[Body]:
    """The worked cases of the later instruments, whose file says the calculator and posts bodies as they are."""
    listed: list[Body] = json.loads(INSTRUMENT_CASE_FILE.read_text("utf-8"))["cases"]
    return listed


class Asked:
    """A calculator as a client asks it: answers as JSON gives them, and what is told first of a refused input."""

    def __init__(self, name: str) -> None:
        self.calculator = registry()[name]

    def answer(self, body: Mapping[str, Any] | None = None, /, **fields: Any) -> Answer:
        """What a posted body is answered, given whole, in fields or both."""
        return _as_read(self._computed({**(body or {}), **fields}))

    def view(self, **fields: Any) -> Answer:
        """What the fields of an address show."""
        return _as_read(self.panel(**fields))

    def refusal(self, body: Mapping[str, Any] | None = None, /, **fields: Any) -> FieldError:
        """What a posted body is refused with."""
        return _refusal(lambda: self._computed({**(body or {}), **fields}))

    def view_refusal(self, **fields: Any) -> FieldError:
        """What the fields of an address are refused with."""
        return _refusal(lambda: self.panel(**fields))

    def _computed(self, body: Body) -> Result:
        return self.calculator.compute(self.calculator.inputs.model_validate_json(json.dumps(body)))

    def panel(self, **fields: Any) -> Result:
        """What the fields of an address show, as a value."""
        return self.calculator.panel(self.calculator.query.model_validate(fields))


def _as_read(result: Result) -> Answer:
    read: Answer = json.loads(result.model_dump_json())
    return read


def _refusal(run: Callable[[], Result]) -> FieldError:
    try:
        run()
    except (ValidationError, InputError) as error:
        return refused(error).errors[0]
    raise AssertionError("was accepted")


def agrees(got: Any, expected: Any, rtol: float, atol: float, path: str = "") -> None:
    """`got` holds at least what `expected` holds; numbers that are not whole within the tolerance."""
    if isinstance(expected, dict):
        for name, value in expected.items():
            agrees(got[name], value, rtol, atol, f"{path}.{name}")
    elif isinstance(expected, list):
        assert len(got) == len(expected), path
        for index, value in enumerate(expected):
            agrees(got[index], value, rtol, atol, f"{path}.{index}")
    elif isinstance(expected, float):
        assert abs(got - expected) <= atol + rtol * abs(expected), (path, got, expected)
    else:
        assert got == expected, (path, got, expected)


@dataclass(frozen=True)
class Program:
    """What a calculator's test says of the program that its page offers.

    `prints` are paths of the answer that it must print at the state with which the panel opens, `planted` one number of
    it and a wrong one in its place; `bodies` makes bodies of any shape that the calculator takes, with whatever a
    program may have to say differently.
    """

    prints: list[str]
    planted: tuple[str, str]
    bodies: Callable[[Random], Body]


Refused = list[tuple[Body, *tuple[str, ...]]]
"""What a calculator's test says that it refuses: fields, the dotted path of the refusal, parts of its code or words."""


def changed(body: Body, changes: Refused) -> Refused:
    """A body that is refused for each of these changes to it."""
    return [(body | change, *told) for change, *told in changes]


def quarters(source: Random, *shape: int) -> Any:
    """Nested lists of multiples of 1/4, which are never far from each other."""
    if not shape:
        return source.randint(-12, 12) / 4
    return [quarters(source, *shape[1:]) for _ in range(shape[0])]


Element = lxml.html.HtmlElement
_PARSER = lxml.html.HTMLParser(encoding="utf-8", remove_comments=True, remove_pis=True)


@lru_cache(maxsize=64)
def tree(html: str) -> Element:
    """A page as elements; shared, so not to be changed. An attribute without a value has its own name as its value."""
    page = lxml.html.document_fromstring(html.encode(), parser=_PARSER)
    for element in page.iter("textarea", "pre"):  # a browser leaves out the line break that opens them
        element.text = (element.text or "").removeprefix("\n")
    return page


def text_of(element: Element | None) -> str:
    """What a reader sees of an element, with single spaces; nothing of none."""
    return "" if element is None else " ".join("".join(element.itertext()).split())


def by_id(page: Element, identifier: str) -> Element:
    """The one element of that id."""
    (found,) = [element for element in page.iter() if element.get("id") == identifier]
    return found
