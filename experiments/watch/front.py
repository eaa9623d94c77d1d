"""The name `watch`, as scripts and test suites use it."""

import itertools
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, overload

if TYPE_CHECKING:  # all is imported where it is used: a script may ask for `watch.tokens` alone
    from torch import Tensor

    from samestep.experiments.watch.session import Session
    from samestep.experiments.watch.telling.report import Report


class Watch:
    """`watch("train.py", processes=2)` runs and reports; `with watch(): …` watches what is in the block."""

    @overload
    def __call__(self, command: str | Path, *arguments: str, **options: Any) -> "Report": ...
    @overload
    def __call__(self, **options: Any) -> "Watching": ...
    def __call__(self, *command: str | Path, **options: Any) -> "Report | Watching":
        """With a command: its report, options as of `Settings`. Without: a context manager, see `Watching`."""
        if not command:
            return Watching(**options)
        from samestep.experiments.watch.call import watch_run

        return watch_run(*map(str, command), **options)

    @staticmethod
    def tokens(loss: "Tensor", mask: "Tensor | None" = None) -> "Tensor":
        """Say that this tensor holds one loss for each token (where `mask` is true); it is returned unchanged.

        Raises ValueError if the mask has another shape.
        """
        from samestep.experiments.taps.tokens import mark

        return mark(loss, mask)

    @staticmethod
    def trainer_callback(**options: Any) -> Any:
        """For `Trainer(callbacks=[watch.trainer_callback()])` of transformers, or one of its descendants."""
        from samestep.experiments.watch.callbacks import trainer

        return trainer(Watching(**options))

    @staticmethod
    def lightning_callback(**options: Any) -> Any:
        """For `Trainer(callbacks=[watch.lightning_callback()])` of Lightning."""
        from samestep.experiments.watch.callbacks import lightning

        return lightning(Watching(**options))

    @staticmethod
    def accelerator(accelerator: Any, **options: Any) -> "Watching":
        """Watch from here to `accelerator.end_training()`."""
        from samestep.experiments.watch.callbacks import accelerate

        return accelerate(accelerator, Watching(**options))


_blocks = itertools.count()
"""Blocks that this process has watched."""


class Watching(AbstractContextManager["Watching"]):
    """What runs in the block is watched; at its end rank 0 has the report, prints it, and writes it where asked to.

    folder       where ranks write, if they do not share a machine
    json, html   files to write;  quiet: print nothing

    In a process that is being watched already it does nothing, and `report` stays None.
    """

    def __init__(
        self, *, folder: str | Path | None = None, json: str | Path | None = None, html: str | Path | None = None,
        quiet: bool = False, **options: Any,
    ) -> None:  # fmt: skip
        from samestep.experiments.watch.settings import Settings

        self.settings = Settings(**options)
        self.given = Path(folder) if folder else None
        self.json, self.html, self.quiet = json, html, quiet
        self.report: Report | None = None
        self._folder = Path()
        self._session: Session | None = None

    def __enter__(self) -> "Watching":
        self.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end(error)

    def begin(self) -> None:
        """Put the taps in, unless this process is watched already."""
        from samestep.experiments.watch import rank, session

        if session.current() is None:
            self._folder = rank.opened(self.given or rank.common_folder(next(_blocks)))
            chosen = self.settings
            order = session.Order(str(self._folder), chosen.updates, chosen.skip, chosen.eager, chosen.tensors)
            self._session = session.start(order)

    def end(self, error: BaseException | None = None) -> None:
        """Take them out; rank 0 waits for the others' records and reports."""
        from samestep.experiments.watch import rank, session
        from samestep.experiments.watch.joined.assembling import assemble

        if self._session is None:
            return
        mine, self._session = self._session, None
        if error is not None:
            mine.failed(error)
        session.stop(mine)
        if mine.rank == 0:
            rank.wait_for_all(self._folder, 0.0 if error is not None else rank.WAIT)
            self.report = assemble(self._folder, self.settings.objective, sys.argv)
            self._show(self.report)
            if self.given is None:
                rank.remove(self._folder)

    def _show(self, report: "Report") -> None:
        if not self.quiet:
            print(report, flush=True)
        if self.json:
            from samestep.experiments.watch.telling.report import as_json

            Path(self.json).write_text(as_json(report), "utf-8")
        if self.html:
            from samestep.experiments.watch.telling.page import write

            write(report, Path(self.html))


watch = Watch()
