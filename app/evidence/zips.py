"""A whole bag as one zip file: the same bytes from the same bag, on every machine."""

import hashlib
import io
import zipfile
from dataclasses import dataclass
from pathlib import Path

from samestep.app.evidence.bags import Bag, DamagedError, sha256_of
from samestep.app.paths import write_whole


@dataclass(frozen=True)
class Zip:
    """`place` is where it is kept, with its SHA-256; None where no folder takes it: then `content` holds the bytes."""

    digest: str
    place: Path | None
    content: bytes = b""


class Zips:
    """Zips of bags, made once per content and kept in a folder; what is kept is checked before it is used again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._digests: dict[str, str] = {}
        self._seen: dict[Path, tuple[int, int, int]] = {}

    def of(self, bag: Bag) -> Zip:
        """Raises DamagedError when a file is not what the manifest promises."""
        for file in bag.damaged:
            raise DamagedError(bag.name, file)
        place = self._folder / f"{bag.name}-{bag.etag[:16]}.zip"
        digest = self._digests.get(bag.etag)
        if digest is not None and self._intact(place, digest):
            return Zip(digest, place)
        content = _packed(bag)
        digest = self._digests[bag.etag] = hashlib.sha256(content).hexdigest()
        if self._intact(place, digest) or (write_whole(place, content) and self._intact(place, digest)):
            return Zip(digest, place)
        return Zip(digest, None, content)

    def _intact(self, place: Path, digest: str) -> bool:
        """Whether the kept file has the digest; read again only when its size, time or inode has changed."""
        try:
            status = place.stat()
            identity = status.st_size, status.st_mtime_ns, status.st_ino
            if self._seen.get(place) == identity:
                return True
            if sha256_of(place) != digest:
                return False
        except OSError:
            return False
        self._seen[place] = identity
        return True


def _packed(bag: Bag) -> bytes:
    """Stored, not deflated, in fixed order with a fixed date."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
        for file in bag.files:
            entry = zipfile.ZipInfo(f"{bag.name}/{file.path}", (1980, 1, 1, 0, 0, 0))
            entry.create_system, entry.external_attr = 3, 0o100644 << 16  # Unix, wherever it is made
            archive.writestr(entry, bag.read(file.path))
    return stream.getvalue()
