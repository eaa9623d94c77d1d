"""Which backwards belong to which step: a listener of the taps that writes an `Update` for every step it hears of.

Backwards have running numbers. A parameter's `cleared` is the number of the first backward after its last zero_grad:
it and all later ones are in the parameter's gradient. What an optimizer steps with are thus the backwards since the
least `cleared` of its parameters. Backwards since its last step, but before that, were thrown away, unless another
optimizer has used them.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from samestep.experiments.taps.backwards import Backward, Backwards
from samestep.experiments.taps.placement import Part
from samestep.experiments.taps.sites import line
from samestep.experiments.watch import written
from samestep.experiments.watch.records import Fault, Notice, Update

KEPT = 512
"""Backwards that are kept for a step that may never come."""


@dataclass
class Candidate:
    """A backward that no step has used yet, or only some optimizer's."""

    seen: Backward
    scale: Tensor | None
    used: bool = False


@dataclass
class Optimizer:
    """What is remembered of one: its number, how often it stepped while we looked, and when the last time was."""

    number: int
    steps: int = 0
    last: int = 0


class Windows:
    """The listener. `write` takes updates and notices; `full` is called when every optimizer was seen often enough."""

    def __init__(self, updates: int, skip: int, write: Callable[[Any], None], full: Callable[[], None]) -> None:
        self.updates, self.skip = updates, skip
        self.write, self.full = write, full
        self.backwards = Backwards(self)
        self.names: dict[int, str] | None = None
        self._candidates: list[Candidate] = []
        self._cleared: dict[int, int] = {}
        self._optimizers: dict[int, Optimizer] = {}
        self._before: dict[int, tuple[int, Part]] = {}
        self._scale: Tensor | None = None
        self._window_scale: Tensor | None = None
        self._unscaled: set[int] = set()
        self._while_scaled = self._clipped_inside = False
        self._told: set[Any] = set()
        self._stepped: dict[int, int] = {}

    # What the taps report

    def backward_begins(self, cleared: Iterable[int]) -> None:
        if self._optimizers and (self._enough() or self._plenty()):
            self.full()
        self.cleared(cleared)
        if self._before and any(number == self.backwards.count for number, _ in self._before.values()):
            self._clipped_inside = True

    def backward_ended(self, seen: Backward) -> None:
        if self._scale is not None:
            self._window_scale = self._scale
        if seen.contributions:
            self._candidates.append(Candidate(seen, self._scale))
            del self._candidates[:-KEPT]
        self._scale = None

    def cleared(self, tags: Iterable[int]) -> None:
        for tag in tags:
            self._cleared[tag] = self.backwards.count
            self._before.pop(tag, None)

    def scaled(self, scale: Tensor) -> None:
        self._scale = scale

    def unscaled(self, optimizer: Any) -> None:
        self._unscaled.add(id(optimizer))

    def before_clip(self, parts: dict[int, Part]) -> None:
        now = self.backwards.count
        for tag, part in parts.items():
            if self._before.get(tag, (None,))[0] != now:
                self._before[tag] = now, part
        if self._window_scale is not None and not self._unscaled:
            self._while_scaled = True

    def skipped(self, optimizer: Any) -> None:
        self._step(optimizer, self._tags(optimizer), {}, (), skipped=True)

    def stepping(self, optimizer: Any, tags: Iterable[int], parts: dict[int, Part], missing: Iterable[int]) -> None:
        self._step(optimizer, list(tags), parts, tuple(missing), skipped=False)

    def unsupported(self, what: str) -> None:
        self._tell(Notice(what, line() or "", fatal=True))
        self.backwards.listening = False

    def noticed(self, what: str, where: str) -> None:
        self._tell(Notice(what, where))

    def fault(self, error: BaseException) -> None:
        self._tell(Fault(written.described(error)))

    def _tell(self, message: Notice | Fault) -> None:
        if message not in self._told:
            self._told.add(message)
            self.write(message)

    # Steps

    def _tags(self, optimizer: Any) -> list[int]:
        return self.backwards.parameters.known(p for group in optimizer.param_groups for p in group["params"])

    def _step(
        self, optimizer: Any, tags: list[int], parts: dict[int, Part], missing: tuple[int, ...], *, skipped: bool
    ) -> None:
        began = time.perf_counter()
        known = self._optimizers.setdefault(id(optimizer), Optimizer(len(self._optimizers)))
        now, mine = self.backwards.count, set(tags)
        begin = min((self._cleared.get(tag, 0) for tag in tags), default=0)
        cells = [each for each in self._candidates if each.seen.number >= known.last and _touches(each, mine)]
        used = [each for each in cells if each.seen.number >= begin]
        lost = [each for each in cells if each.seen.number < begin and not each.used]
        for each in used:
            each.used = True
        if known.steps >= self.skip - 1 and known.steps < self.skip + self.updates and (used or lost or parts):
            self._write(known, optimizer, used, lost, mine, parts, missing, begin < known.last, skipped, began)
        known.steps, known.last = known.steps + 1, now
        for tag in mine:
            self._before.pop(tag, None)
        self._unscaled.discard(id(optimizer))
        self._while_scaled = self._clipped_inside = False
        self._window_scale = None
        self._stepped.update(dict.fromkeys(tags, now))
        self._candidates = [each for each in self._candidates if self._may_be_stepped(each)]

    def _may_be_stepped(self, candidate: Candidate) -> bool:
        """Whether some parameter has not been stepped since: its optimizer may still come."""
        number = candidate.seen.number
        return any(self._stepped.get(tag, 0) <= number for tag in candidate.seen.contributions)

    def _enough(self) -> bool:
        return all(each.steps >= self.skip + self.updates for each in self._optimizers.values())

    def _plenty(self) -> bool:
        """One optimizer steps on and on while another one waits: that one is not waited for."""
        return max(each.steps for each in self._optimizers.values()) >= self.skip + 8 * self.updates

    def _write(
        self, known: Optimizer, optimizer: Any, used: list[Candidate], lost: list[Candidate], mine: set[int],
        parts: dict[int, Part], missing: tuple[int, ...], leaks: bool, skipped: bool, began: float,
    ) -> None:  # fmt: skip
        if self.names is None:
            self.names = self.backwards.parameters.names()
        before = {tag: part for tag, (number, part) in self._before.items() if number == self.backwards.count}
        cells, gradients = written.on_the_host(
            [*lost, *used], len(lost), mine, parts, before, self._name,
            self._window_scale if self._while_scaled else None,
        )  # fmt: skip
        self.write(
            Update(
                known.number,
                written.optimizer_name(optimizer),
                known.steps - self.skip,
                line(),
                cells,
                gradients,
                tuple(self._name(tag) for tag in missing),
                leaks,
                bool(before),
                self._while_scaled,
                self._clipped_inside,
                skipped,
                time.perf_counter() - began,
            )
        )

    def _name(self, tag: int) -> str:
        return (self.names or {}).get(tag, f"#{tag}")


def _touches(candidate: Candidate, tags: set[int]) -> bool:
    return not tags.isdisjoint(candidate.seen.contributions)
