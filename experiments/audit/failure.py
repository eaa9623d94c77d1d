"""Why an audit could not be run."""

from dataclasses import dataclass
from typing import Literal

Fault = Literal["yours", "ours", "hang"]
OURS = "this is a fault of the audit, not of your file; please report it with what follows"


class ReaderError(RuntimeError):
    """A mistake in the reader's file. `own_traceback` has the reader's frames only; "" where there are none."""

    def __init__(self, message: str, own_traceback: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.own_traceback = own_traceback


@dataclass(frozen=True)
class Failure:
    """What the report says of a run that did not come to an end. `rank` is None where no single one is to blame.

    fault   yours: the file could not be run; ours: the audit itself failed; hang: the ranks waited for each other
    hint    what may help
    """

    message: str
    rank: int | None = None
    doing: str = ""
    own_traceback: str = ""
    log: str = ""
    fault: Fault = "yours"
    hint: str = ""

    def __str__(self) -> str:
        where = "" if self.rank is None else f"rank {self.rank}"
        where += f" ({self.doing})" if self.doing and where else self.doing
        text = f"{where}: {self.message}" if where else self.message
        if self.fault == "ours":
            text = f"{text} ({OURS})"
        for part in (self.hint, self.own_traceback, self.log):
            text += f"\n{part.rstrip()}" if part else ""
        return text
