"""Where in the reader's files something is called from."""

import sys
from pathlib import Path


class Sites:
    """Finds lines within the folder of the reader's file."""

    def __init__(self, file: Path) -> None:
        self._folder = f"{file.parent}/"

    def here(self) -> str | None:
        """`file.py:12` of the innermost frame in the folder; None if there is none."""
        frame = sys._getframe(1)
        while frame is not None:
            place = frame.f_code.co_filename
            if place.startswith(self._folder) and "site-packages" not in place:
                return f"{place.removeprefix(self._folder)}:{frame.f_lineno}"
            frame = frame.f_back  # type: ignore[assignment]
        return None
