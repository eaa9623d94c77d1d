"""Compiled chapters, kept between two starts: by the digest of everything that their text depends on."""

import pickle
from collections.abc import Callable
from pathlib import Path

from samestep.app.book.markdown.pieces import Document
from samestep.app.paths import Kept, digest_of

_BOOK = "book"


class Compiled:
    """The documents of one state of the book."""

    def __init__(self, folder: Path, content: Path, addresses: str) -> None:
        """`addresses` shows where links lead, which the server's settings decide."""
        self._kept = Kept(folder, str(content), content_digest(content), addresses)
        kept = self._kept.read(_BOOK)
        self._documents: dict[str, Document] = pickle.loads(kept) if kept else {}
        self._complete = bool(self._documents)

    def document(self, file: Path, compile_it: Callable[[], Document]) -> Document:
        """The kept document of a file, or the one that is made now."""
        if str(file) not in self._documents:
            self._documents[str(file)] = compile_it()
            self._complete = False
        return self._documents[str(file)]

    def keep(self) -> None:
        """Write what is new."""
        if not self._complete:
            self._kept.write(_BOOK, pickle.dumps(self._documents))


def content_digest(content: Path) -> str:
    """Of everything in the content folder that a page can quote."""
    files = [*content.glob("*.toml"), *content.glob("*/*.md")]
    return digest_of(content, [*files, *content.glob("evidence/*/*.txt"), *content.glob("evidence/*/data/result.json")])
