"""Compiled chapters, kept between two starts: by the digest of everything that their text depends on."""

import hashlib
import pickle
from collections.abc import Callable
from pathlib import Path

from samestep.app.book.markdown.pieces import Document
from samestep.app.paths import APP, write_whole

_KEPT = 4
"""Books kept: the last ones that were used on this machine."""


class Compiled:
    """The documents of one state of the book. `folder` is the user's own cache: nobody else writes there."""

    def __init__(self, folder: Path, content: Path, addresses: str) -> None:
        """`addresses` shows where links lead, which the server's settings decide."""
        self._place = folder / f"{_digest(content, addresses)}.pickle"
        self._documents: dict[str, Document] = {}
        if kept := self._kept():
            self._documents = pickle.loads(kept)
        self._complete = bool(self._documents)

    def document(self, file: Path, compile_it: Callable[[], Document]) -> Document:
        """The kept document of a file, or the one that is made now."""
        if str(file) not in self._documents:
            self._documents[str(file)] = compile_it()
            self._complete = False
        return self._documents[str(file)]

    def keep(self) -> None:
        """Write what is new; a folder that cannot be written to only costs time at the next start."""
        if self._complete:
            return
        documents = pickle.dumps(self._documents)
        if write_whole(self._place, hashlib.sha256(documents).digest() + documents):
            kept = sorted(self._place.parent.glob("*.pickle"), key=_last_used)
            for old in kept[:-_KEPT]:
                old.unlink(missing_ok=True)

    def _kept(self) -> bytes:
        """What was written, if it is still exactly that; nothing else is harmful, it is compiled again."""
        try:
            content = self._place.read_bytes()
        except OSError:
            return b""
        digest, documents = content[:32], content[32:]
        return documents if hashlib.sha256(documents).digest() == digest else b""


def _last_used(place: Path) -> float:
    try:
        return place.stat().st_mtime
    except OSError:  # another server has just removed it
        return 0.0


def _digest(content: Path, addresses: str) -> str:
    """Of the code, of everything in the content folder that a chapter can quote, and of where links lead."""
    digest = hashlib.sha256(addresses.encode())
    files = [*APP.rglob("*.py"), *content.glob("*.toml"), *content.glob("*/*.md")]
    files += [*content.glob("evidence/*/*.txt"), *content.glob("evidence/*/data/result.json")]
    for file in sorted(files):
        digest.update(f"\0{file}\0".encode() + file.read_bytes())
    return digest.hexdigest()[:24]
