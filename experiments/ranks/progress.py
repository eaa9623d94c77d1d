"""What the command line prints while ranks run: how far they are."""

import sys
import time
from types import TracebackType
from typing import TextIO

from samestep.experiments.ranks.launch import Step

BAR = 28


class Progress:
    """Rank 0's steps: one line that is rewritten on a terminal; elsewhere a line a step, or every tenth of a bar."""

    def __init__(self, stream: TextIO = sys.stderr) -> None:
        self.stream = stream
        self.live = stream.isatty()
        self._shown = ""
        self._last = 0.0

    def __call__(self, step: Step) -> None:
        if step.rank != 0:
            return
        state = step.what if step.done is None else f"{int(10 * step.done)}0 %"
        if self.live:
            if state == self._shown and time.monotonic() - self._last < 0.1:
                return
            self.stream.write(f"\r\x1b[K{self._line(step)}")
        elif state != self._shown:
            self.stream.write(f"{self._line(step)}\n")
        self.stream.flush()
        self._shown, self._last = state, time.monotonic()

    def _line(self, step: Step) -> str:
        if step.done is None:
            return f"· {step.what}"
        filled = round(BAR * step.done)
        return f"· [{'█' * filled}{'·' * (BAR - filled)}] {step.what}"

    def __enter__(self) -> "Progress":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.live:
            self.stream.write("\r\x1b[K")
            self.stream.flush()
