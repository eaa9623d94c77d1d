"""Static files, served under the hash of all of them: the address changes when any file does, so browsers may keep
them for ever, and relative imports between modules keep working."""

import hashlib
import mimetypes
import pickle
from collections.abc import Mapping
from pathlib import Path

from samestep.app.paths import Kept
from samestep.app.rendering import style_sheets
from samestep.app.web.compression import compressed
from samestep.app.web.ready import Ready, security_headers

_FOREVER = (b"cache-control", b"public, max-age=31536000, immutable")
_COMPRESSED = ("text/", "application/javascript", "image/svg+xml")
mimetypes.add_type("font/woff2", ".woff2")


class Assets:
    """All files under `static`, and `made` ones beside them, compressed once; of the sheets in `css` the bundles."""

    def __init__(self, folder: Path, made: Mapping[str, bytes], root_path: str = "") -> None:
        files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        self._files = _bundled(files | dict(made))
        digest = hashlib.sha256()
        for name in sorted(self._files):
            digest.update(name.encode() + b"\0" + self._files[name] + b"\0")
        self.base = f"/s/{digest.hexdigest()[:12]}/"
        self._root = root_path.rstrip("/")

    def url(self, name: str) -> str:
        """The address of a file; KeyError for one that is not there."""
        if name not in self._files:
            raise KeyError(f"no static file “{name}”")
        return self._root + self.base + name

    def responses(self, kept: Kept) -> dict[str, Ready]:
        """Path (without the root path) → the finished answer. `kept` has what was compressed before."""
        packed = self._packed(kept)
        return {self.base + name: _ready(name, body, packed.get(name)) for name, body in self._files.items()}

    def _packed(self, kept: Kept) -> dict[str, bytes]:
        """The files that are worth it, as small as brotli makes them, which takes half a second."""
        if (before := kept.read(self.base)) is not None:
            known: dict[str, bytes] = pickle.loads(before)
            return known
        texts = {name: body for name, body in self._files.items() if _kind(name).startswith(_COMPRESSED)}
        packed = {name: compressed(body, "br", quality=11) for name, body in texts.items()}
        kept.write(self.base, pickle.dumps(packed))
        return packed


def _ready(name: str, body: bytes, packed: bytes | None) -> Ready:
    kind = _kind(name)
    charset = "; charset=utf-8" if kind.startswith("text/") else ""
    return Ready(body, kind + charset, [_FOREVER, *security_headers()], compress=packed is not None, packed=packed)


def _kind(name: str) -> str:
    guessed = mimetypes.guess_type(name)[0] or "application/octet-stream"
    return "text/javascript" if name.endswith(".js") else guessed


def _bundled(files: dict[str, bytes]) -> dict[str, bytes]:
    """The same files, the style sheets as one `css/KIND.css` for each kind of page."""
    bundles = {
        f"css/{kind}.css": style_sheets.bundle(kind, lambda name: files[f"css/{name}.css"].decode()).encode()
        for kind in style_sheets.KINDS
    }
    return {name: body for name, body in files.items() if not name.startswith("css/")} | bundles
