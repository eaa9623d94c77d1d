"""The line of the reader's script that is being executed: the innermost frame that belongs to no library."""

import os
import site
import sys
import sysconfig
from pathlib import Path
from types import FrameType, TracebackType

ROOMS = ("audit", "ranks", "taps", "watch")
"""Folders of this package whose frames are under, over or between the reader's."""
OURS = tuple(
    f"{place.parents[1] / room}{os.sep}"
    for place in (Path(__file__).absolute(), Path(__file__).resolve())
    for room in ROOMS
)
SCRIPTS = tuple(f"{ours}{folder}{os.sep}" for ours in OURS for folder in ("examples", "walkthrough"))


def _libraries() -> tuple[str, ...]:
    places = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    places |= {*site.getsitepackages(), site.getusersitepackages()}
    if (torch := sys.modules.get("torch")) is not None and torch.__file__:
        places.add(str(Path(torch.__file__).parent))
    return tuple(str(Path(place)) + os.sep for place in places if place)


_KNOWN: dict[str, bool] = {}


def is_readers(file: str) -> bool:
    """Whether a code object's file is the reader's own: no library, not frozen, not ours."""
    if file not in _KNOWN:
        real = os.path.abspath(file)
        library = f"{os.sep}site-packages{os.sep}" in real or real.startswith(_libraries())
        _KNOWN[file] = not (file.startswith("<") or library or is_ours(file))
    return _KNOWN[file]


def is_ours(file: str) -> bool:
    """Whether a code object's file is part of this package; a script that it gives or walks through is the reader's."""
    place = os.path.abspath(file)
    return place.startswith(OURS) and not place.startswith(SCRIPTS)


def line() -> str | None:
    """`train.py:23`, or None where no frame is the reader's."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if is_readers(frame.f_code.co_filename):
            return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
        frame = frame.f_back
    return None


def without_ours(trace: TracebackType | None) -> TracebackType | None:
    """The same traceback without the frames of this package."""
    if trace is None:
        return None
    rest = without_ours(trace.tb_next)
    if is_ours(trace.tb_frame.f_code.co_filename):
        return rest
    return TracebackType(rest, trace.tb_frame, trace.tb_lasti, trace.tb_lineno)
