"""What does every token of a real run weigh? The reader's script, watched as it is.

    samestep-lab watch -- torchrun --nproc-per-node 2 train.py

In a test suite (a failure prints the report):

    from samestep import watch

    def test_every_token_weighs_the_same():
        report = watch("train.py", processes=2)
        assert report.verdict == "same", report

In a script that cannot be started by us: `with watch(): …` round the training loop, or one import (`.on`); callbacks
for transformers, Lightning and accelerate do the same. `watch.tokens(loss, mask)` marks a loss that shows no tokens.

    ../taps          how a step is seen while it runs: torch and nothing else; the audit looks through them, too
    session          the taps of a process, and windows: which backwards belong to which step; written, records: on disk
    joining, fitting, weighing, patterns, comparing, verdict, judgement    from records to a verdict, in numpy
    report, printing, page, causes, links     what is said
    launch, call, command, rank               how a run is started

What is named here is opened when it is asked for: a watched process imports torch, numpy, and no more of ours than the
taps, for it may run in an environment that has nothing else; and who only asks for a report imports no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from samestep.experiments.watch.front import Watch, Watching, watch
    from samestep.experiments.watch.settings import Settings
    from samestep.experiments.watch.telling.report import Report

__all__ = ["Report", "Settings", "Watch", "Watching", "watch"]

_HOMES = {"Report": "telling.report", "Settings": "settings", "Watch": "front", "Watching": "front", "watch": "front"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
