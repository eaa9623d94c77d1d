"""What the processes of one launch have to do, and where they leave it."""

from dataclasses import dataclass
from pathlib import Path

from samestep.experiments.audit.settings import Settings


@dataclass(frozen=True)
class Job:
    """`files` to audit, each as its `settings` say; those that have their report are skipped, and what is recorded.

    The processes, and so their number, backend, type and time-out, are `common` to all files.
    """

    files: tuple[Path, ...]
    settings: tuple[Settings, ...]
    folder: Path

    @property
    def common(self) -> Settings:
        """Those of any file, as far as they are the same for all."""
        return self.settings[0]

    def place(self, index: int) -> Path:
        """Everything about one file: traces by run and rank."""
        return self.folder / f"file{index}"

    def report(self, index: int) -> Path:
        """The pickled report of one file."""
        return self.place(index) / "report.pickle"

    @property
    def order(self) -> Path:
        """This job, pickled for the ranks."""
        return self.folder / "job.pickle"
