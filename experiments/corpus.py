"""The text that the tiny model learns from: a frozen copy of chapters of this book, and its digests.

Frozen, so that editing a chapter does not change what was trained: `freeze` copies the chapters once, with a
`SHA256SUMS` that `sha256sum -c` reads, and `read` refuses a copy that does not match it. No torch.
"""

import hashlib
import re
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).resolve().parent / "corpus"
SUMS = "SHA256SUMS"
CHAPTERS = ("10", "20", "70")
LANGUAGES = ("zh", "en")
SMALLEST, LARGEST = 60_000, 200_000

_LINE = re.compile(r"([0-9a-f]{64})  ([a-z0-9.-]+)")


class CorpusError(ValueError):
    """The frozen text is missing, damaged, or not of the agreed size."""


class Document(NamedTuple):
    """One frozen chapter: `zh-10-….md`, its text and the SHA-256 of its bytes."""

    name: str
    text: str
    sha256: str
    size: int


def read(folder: Path = FOLDER) -> list[Document]:
    """All documents in the order of their names; raises CorpusError when one is missing or changed."""
    sums = folder / SUMS
    if not sums.is_file():
        raise CorpusError(f"there is no frozen corpus in {folder}: make one with `train --freeze-corpus`")
    documents = []
    for line in sums.read_text("utf-8").splitlines():
        match = _LINE.fullmatch(line)
        place = folder / match[2] if match else None
        if match is None or place is None or not place.is_file():
            raise CorpusError(f"{sums}: no file for the line “{line}”")
        content = place.read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        if digest != match[1]:
            raise CorpusError(f"{place} has changed: promised SHA-256 {match[1]}, found {digest}")
        documents.append(Document(place.name, content.decode(), digest, len(content)))
    return documents


def freeze(content: Path, folder: Path = FOLDER) -> list[Document]:
    """Copy the chapters of `content` into `folder`, in place of what is there; raises CorpusError for a wrong size."""
    places = [
        (f"{language}-{place.name}", place)
        for language in LANGUAGES
        for number in CHAPTERS
        for place in sorted((content / language).glob(f"{number}-*.md"))
    ]
    if len(places) != len(LANGUAGES) * len(CHAPTERS):
        raise CorpusError(
            f"chapters {', '.join(CHAPTERS)} are not all there in both languages: {[n for n, _ in places]}"
        )
    size = sum(place.stat().st_size for _, place in places)
    if not SMALLEST <= size <= LARGEST:
        raise CorpusError(f"the chapters have {size:,} bytes together; {SMALLEST:,} to {LARGEST:,} are wanted")
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    lines = []
    for name, place in sorted(places):
        (folder / name).write_bytes(place.read_bytes())
        lines.append(f"{hashlib.sha256(place.read_bytes()).hexdigest()}  {name}\n")
    (folder / SUMS).write_text("".join(lines), "utf-8")
    return read(folder)
