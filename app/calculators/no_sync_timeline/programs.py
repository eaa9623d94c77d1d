"""In which order a window's forwards and backwards run, and in which of them gradient synchronisation is switched on.

DDP switches it off by running inside `no_sync()`, FSDP2 by `set_requires_gradient_sync(False)`; in hybrid sharding
`set_requires_all_reduce` switches the part between the groups.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

Order = Literal["alternating", "forwards_first", "one_backward"]
"""Forward and backward by turns; all forwards, then all backwards; all forwards, then one backward of the losses' sum.
"""

ProgramName = Literal[
    "last_synchronised",
    "every_backward",
    "backward_inside",
    "forward_inside",
    "never",
    "last_left_out",
    "forwards_first",
    "one_backward",
    "added_after_all_reduce",
]
"""The last is no program but another reduction: see `wrappers.AddedAfter`."""


class Event(NamedTuple):
    """A forward of a microstep (counted from 0), or a backward of some; `sync`: whether it runs with it switched on."""

    kind: Literal["forward", "backward"]
    microsteps: tuple[int, ...]
    sync: bool


@dataclass(frozen=True)
class Program:
    """One window; `forward[k]` and `backward[k]` say whether synchronisation is on in that part of microstep k."""

    forward: tuple[bool, ...]
    backward: tuple[bool, ...]
    order: Order = "alternating"

    def events(self) -> Iterator[Event]:
        """What happens, in its order; the one backward of a sum runs as the last microstep's would."""
        steps = range(len(self.forward))
        if self.order == "alternating":
            for k in steps:
                yield Event("forward", (k,), self.forward[k])
                yield Event("backward", (k,), self.backward[k])
            return
        for k in steps:
            yield Event("forward", (k,), self.forward[k])
        if self.order == "one_backward":
            yield Event("backward", tuple(steps), self.backward[-1])
            return
        for k in steps:
            yield Event("backward", (k,), self.backward[k])


def named(microsteps: int) -> dict[ProgramName, Program]:
    """The usual ways to write a window of K microsteps, the right one first."""
    on, off = (True,) * microsteps, (False,) * microsteps
    last = (*off[1:], True)
    return {
        "last_synchronised": Program(last, last),
        "every_backward": Program(on, on),
        "backward_inside": Program(on, last),
        "forward_inside": Program(off, last),
        "never": Program(off, off),
        "last_left_out": Program((*on[1:], False), (*on[1:], False)),
        "forwards_first": Program(on, on, "forwards_first"),
        "one_backward": Program(on, on, "one_backward"),
    }
