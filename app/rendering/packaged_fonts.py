"""The font that comes with a dependency: STIX Two Math of ziamath's wheel, with Latin letters and mathematics."""

import importlib.metadata
from pathlib import Path

_SOURCE = "ziamath/fonts/STIXTwoMath-Regular.ttf"


def source_font() -> Path | None:
    """The TTF in ziamath's installed files, found without importing the package; None when it is not there."""
    try:
        place = importlib.metadata.distribution("ziamath").locate_file(_SOURCE)
    except importlib.metadata.PackageNotFoundError:
        return None
    path = Path(str(place))
    return path if path.is_file() else None
