"""The ranks of a run on this machine: one way to start, bound, hear and end them, for everything that needs several.

    parent      starts a program once for every rank, watches them, ends them all when one fails
    child       that program's side: join, report, end; never an orphan
    launch      experiments as such a run: `python -m samestep.experiments.ranks` is what each rank runs
    world       what an experiment knows of its run, and what it may ask of the others
    torchrun    the same world where torchrun, on one or several hosts, has started the ranks

`audit.launch` and `conformance.pairs` start their own programs through `parent`. Only `world` needs torch.
"""

from collections.abc import Callable

Tell = Callable[[str, float | None], None]
"""What is done now, and how much of it (0 to 1) where that is known."""

PEER_GONE = ("closed by peer", "reset by peer")
"""What Gloo says on a rank that waits for one that has ended."""
