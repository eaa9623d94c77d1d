"""Where files are: content, static files and templates, and what this machine keeps between two starts.

What was made of code and content is kept under the digest of all that it was made of. A cache folder may be lost,
full, read-only or damaged: what is not there whole is made again.
"""

import hashlib
import os
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

from platformdirs import user_cache_path

import samestep

APP = Path(__file__).resolve().parent
IMPORTED_FROM = Path(samestep.__file__).parents[1]
"""The folder that holds the package: what a child process needs on its path to find the same code."""

_STATES = 4
"""Of everything that is kept the last states that were used on this machine."""
_PACKAGES = (
    "brotli",
    "fastapi",
    "jinja2",
    "markdown-it-py",
    "markupsafe",
    "math-core",
    "mdit-py-plugins",
    "numpy",
    "pydantic",
    "pydantic-core",
    "pygments",
    "snowballstemmer",
)


def folder(name: Literal["content", "static", "templates"]) -> Path:
    """The folder of that name: beside `app`, in a checkout and in an installed wheel.

    Raises FileNotFoundError, with what to do, when the installation is incomplete.
    """
    place = APP.parent / name
    if place.is_dir():
        return place
    raise FileNotFoundError(
        f"the folder “{name}” is missing beside {APP}: install samestep again, or run from a checkout"
    )


def write_whole(place: Path, content: bytes) -> bool:
    """Write a file that is there whole or not at all; False where the disk or the folder does not take it."""
    partial: str | None = None
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=place.parent, suffix=".partial", delete=False) as stream:
            partial = stream.name
            stream.write(content)
        Path(partial).replace(place)
    except OSError:
        if partial is not None:
            Path(partial).unlink(missing_ok=True)
        return False
    return True


def cache_folder() -> Path:
    """The folder for what can be made again (math font, compiled chapters); it may not exist yet.

    `SAMESTEP_CACHE_DIR` overrides the place where the operating system keeps a user's caches.
    """
    chosen = os.environ.get("SAMESTEP_CACHE_DIR")
    return Path(chosen) if chosen else user_cache_path("samestep", appauthor=False)


class Kept:
    """The entries of one state. `folder` is for one kind of them, in the user's own cache: nobody else writes there."""

    def __init__(self, folder: Path, *made_of: str) -> None:
        """`made_of` is all that the entries depend on, beside the code."""
        digest = hashlib.sha256("\0".join((code_digest(), *made_of)).encode()).hexdigest()
        self._folder = folder / digest[:24]
        with suppress(OSError):  # not there yet, or not ours to touch
            os.utime(self._folder)

    def read(self, name: str) -> bytes | None:
        """What was written under that name, if it is still exactly that."""
        try:
            content = self._place(name).read_bytes()
        except OSError:
            return None
        digest, entry = content[:32], content[32:]
        return entry if hashlib.sha256(entry).digest() == digest else None

    def write(self, name: str, entry: bytes) -> None:
        """A folder that cannot be written to only costs time at the next start."""
        is_first = not self._folder.is_dir()
        written = write_whole(self._place(name), hashlib.sha256(entry).digest() + entry)
        if written and is_first:
            for old in sorted(self._folder.parent.iterdir(), key=_last_used)[:-_STATES]:
                shutil.rmtree(old, ignore_errors=True)

    def _place(self, name: str) -> Path:
        return self._folder / hashlib.sha256(name.encode()).hexdigest()[:24]


def digest_of(base: Path, files: Iterable[Path]) -> str:
    """Of the files' contents, and their places below `base`."""
    digest = hashlib.sha256()
    for file in sorted(files):
        content = file.read_bytes()
        digest.update(f"\0{file.relative_to(base).as_posix()}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


@cache
def code_digest() -> str:
    """Of the wiki's code, the packages that it works with, and Python."""
    return " ".join([digest_of(APP, APP.rglob("*.py")), sys.version, sqlite3.sqlite_version, *map(_release, _PACKAGES)])


def _release(package: str) -> str:
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:  # put there by something else than an installer
        return package


def _last_used(place: Path) -> float:
    try:
        return place.stat().st_mtime
    except OSError:  # another server has just removed it
        return 0.0
