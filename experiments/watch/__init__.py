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

This package's front imports no torch.
"""

from samestep.experiments.watch.front import Watch, Watching
from samestep.experiments.watch.settings import Settings
from samestep.experiments.watch.telling.report import Report

__all__ = ["Report", "Settings", "Watch", "Watching", "watch"]

watch = Watch()
