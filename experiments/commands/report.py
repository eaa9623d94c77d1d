"""What the command line prints: progress while a run goes on, then a line for every check."""

import sys
import time
from types import TracebackType
from typing import TextIO

from samestep.app.evidence.bags import Result, Row
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


def print_result(result: Result) -> None:
    """A verdict line per check, then the verdict of the whole."""
    print(f"\n{result['name']}: {result['question']['en']}")
    for row in result["rows"]:
        print(f"  {_mark(row['met'])} {row['id']:<58} {row['expectation']:<9} {_differences(row)}")
    for control in result["controls"]:
        print(f"  {_mark(control['met'])} {control['title']['en']}")
    for absent in result.get("not_measured", []):
        what = " ".join(filter(None, (absent["framework"], absent["version"], absent["setting"])))
        print(f"  --   not measured: {what}: {absent['reason']}")
    checks = [each["met"] for each in (*result["rows"], *result["controls"])]
    print(f"{result['name']} {result['verdict']}: {sum(checks)} of {len(checks)} checks hold")


def _mark(met: bool) -> str:
    return "ok  " if met else "FAIL"


def _differences(row: Row) -> str:
    return "  ".join(
        f"{quantity} {'undefined' if value is None else f'{value:.1e}'}"
        for quantity, value in row["max_abs_difference"].items()
    )
