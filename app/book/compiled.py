"""Compiled chapters, kept between two starts: by the digest of everything that their text depends on."""

import hashlib
import pickle
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from samestep.app.book.markdown.pieces import Document
from samestep.app.paths import APP

_KEPT = 4
"""Books kept: the last ones that were used on this machine."""


class Compiled:
    """The documents of one state of the book. `folder` is the user's own cache: nobody else writes there."""

    def __init__(self, folder: Path, content: Path, addresses: str) -> None:
        """`addresses` shows where links lead, which the server's settings decide."""
        self._place = folder / f"{_digest(content, addresses)}.pickle"
        self._documents: dict[str, Document] = {}
        # nothing kept, or half of it, is no harm: it is compiled again
        with suppress(OSError, EOFError, pickle.UnpicklingError, AttributeError, ImportError):
            self._documents = pickle.loads(self._place.read_bytes())
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
        try:
            self._place.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=self._place.parent, suffix=".partial", delete=False) as partial:
                partial.write(pickle.dumps(self._documents))
            Path(partial.name).replace(self._place)
            kept = sorted(self._place.parent.glob("*.pickle"), key=lambda place: place.stat().st_mtime)
            for old in kept[:-_KEPT]:
                old.unlink(missing_ok=True)
        except OSError:
            return


def _digest(content: Path, addresses: str) -> str:
    """Of the code, of everything in the content folder that a chapter can quote, and of where links lead."""
    digest = hashlib.sha256(addresses.encode())
    files = [*APP.rglob("*.py"), *content.glob("*.toml"), *content.glob("*/*.md")]
    files += [*content.glob("evidence/*/*.txt"), *content.glob("evidence/*/data/result.json")]
    for file in sorted(files):
        digest.update(f"\0{file}\0".encode() + file.read_bytes())
    return digest.hexdigest()[:24]
