"""Static files, served under the hash of all of them: the address changes when any file does, so browsers may keep
them for ever, and relative imports between modules keep working."""

import hashlib
import mimetypes
from collections.abc import Mapping
from pathlib import Path

from samestep.app.rendering import style_sheets
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
        self._base = f"/s/{digest.hexdigest()[:12]}/"
        self._root = root_path.rstrip("/")

    def url(self, name: str) -> str:
        """The address of a file; KeyError for one that is not there."""
        if name not in self._files:
            raise KeyError(f"no static file “{name}”")
        return self._root + self._base + name

    def responses(self) -> dict[str, Ready]:
        """Path (without the root path) → the finished answer."""
        return {self._base + name: self._ready(name, body) for name, body in self._files.items()}

    def _ready(self, name: str, body: bytes) -> Ready:
        kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
        kind = "text/javascript" if name.endswith(".js") else kind
        charset = "; charset=utf-8" if kind.startswith("text/") else ""
        headers = [_FOREVER, *security_headers()]
        return Ready(body, kind + charset, headers, compress=kind.startswith(_COMPRESSED), quality=11)


def _bundled(files: dict[str, bytes]) -> dict[str, bytes]:
    """The same files, the style sheets as one `css/KIND.css` for each kind of page."""
    bundles = {
        f"css/{kind}.css": style_sheets.bundle(kind, lambda name: files[f"css/{name}.css"].decode()).encode()
        for kind in style_sheets.KINDS
    }
    return {name: body for name, body in files.items() if not name.startswith("css/")} | bundles
