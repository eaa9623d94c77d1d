"""Where files are: content, static files and templates, and what this machine keeps between two starts."""

import os
import tempfile
from pathlib import Path
from typing import Literal

from platformdirs import user_cache_path

import samestep

APP = Path(__file__).resolve().parent
IMPORTED_FROM = Path(samestep.__file__).parents[1]
"""The folder that holds the package: what a child process needs on its path to find the same code."""


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
