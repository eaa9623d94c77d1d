"""Tell a deadlock before the time is up: ranks that sleep in a collective use no processor time.

Only where the system says how much a process has used (Linux); elsewhere nobody is ever idle.
"""

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

LOOK = 1.0
"""Seconds between two looks."""
BUSY = 0.02
"""Share of a processor above which a process is not idle: heartbeats of the libraries' own threads are below."""


class Idleness:
    """Remembers of each process when it was last seen busy, and what it had used by then."""

    def __init__(self, processes: Iterable[int]) -> None:
        self._busy = dict.fromkeys(processes, (0.0, 0.0))
        self._looked = 0.0

    def lasts(self, span: float, now: float, moved: float) -> bool:
        """Whether nobody has moved or been busy for so long. After a yes the span begins anew."""
        if now - self._looked < LOOK:
            return False
        self._looked = now
        for process, (since, used) in self._busy.items():
            spent = _spent(process)
            if spent is None or spent - used > BUSY * max(now - since, LOOK):
                self._busy[process] = (now, spent or 0.0)
        begin = max(moved, *(since for since, _ in self._busy.values()))
        if now - begin <= span:
            return False
        self._busy = {process: (now, used) for process, (_, used) in self._busy.items()}
        return True


def _spent(process: int) -> float | None:
    """Seconds of processor time of all threads; None where that cannot be known."""
    with suppress(OSError, ValueError, IndexError):
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return None
