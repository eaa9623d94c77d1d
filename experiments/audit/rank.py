"""One process of an audit: `samestep.experiments.audit.rank`, started by `launch`, or joined to torchrun's world.

    rank 0 alone     for each file: check it, run the reference
    all ranks        for each file and plan: run the reader's step
    rank 0 alone     for each file: compare, run what the explanation needs, write the report

A mistake that shows while a rank is alone, or on all ranks alike, ends that file's audit only. What happens inside a
step on several ranks ends the process: the others may be waiting for it in a collective.
"""

import gc
import os
import pickle
import shutil
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import NoReturn, Protocol

import torch

from samestep.experiments.audit.failure import Failure, ReaderError
from samestep.experiments.audit.job import Job
from samestep.experiments.audit.judging.diagnosis import diagnose
from samestep.experiments.audit.running import perform, taps, worlds
from samestep.experiments.audit.running.hints import hint
from samestep.experiments.audit.running.plans import Plan, TooFewSamplesError
from samestep.experiments.audit.running.worlds import World
from samestep.experiments.audit.telling.report import Report, failed
from samestep.experiments.ranks import PEER_GONE, child
from samestep.experiments.ranks.child import end

LONG = timedelta(hours=24)
"""Time-out of the groups where a parent watches: it knows more about who is late than a group does."""

REFERENCE = "reference on one process"


class Tell(Protocol):
    """Says to the parent which file this rank is at, what it does, and what may help if it hangs there."""

    def __call__(self, index: int, doing: str, hint: str = "") -> None: ...


@dataclass(frozen=True)
class Ready:
    """A file whose reference has been run: its plans, and how often step() is called."""

    plans: list[Plan]
    calls: int


class Rank:
    """This process's part. `tell(index, doing)` reports progress on a file."""

    def __init__(self, job: Job, rank: int, tell: Tell) -> None:
        self.job, self.rank, self.tell = job, rank, tell
        self.common = job.common
        self.dtype: torch.dtype = getattr(torch, self.common.dtype)
        self.device = worlds.prepare(self.common.dtype, self.common.backend, rank)
        import_module("torch._dynamo")  # any optimizer and any wrapper imports it
        taps.install()
        gc.freeze()  # what the imports made stays: collections after every run need not go through it

    def references(self) -> dict[int, Ready]:
        """The plans of every file that can be run on one process; the others get their report now."""
        ready = {}
        with worlds.of_one(self.common.backend):
            for index, place in enumerate(self.job.files):
                if self.job.report(index).exists():
                    continue
                self.tell(index, REFERENCE)
                try:
                    ready[index] = self._reference(index, place)
                except (ReaderError, TooFewSamplesError) as error:
                    self._refuse(index, error, REFERENCE)
        return ready

    def _reference(self, index: int, place: Path) -> Ready:
        """Check and run one file, unless an earlier launch of this job has done so."""
        done = self.job.place(index) / "ready.pickle"
        if done.exists() and self.rank == 0:
            known: Ready = pickle.loads(done.read_bytes())
            return known
        samples = perform.check_twice(place, self.dtype)
        settings = self.job.settings[index]
        plans = settings.plans(samples)
        folder = self.job.place(index) / (f"reference{self.rank}" if self.rank else "reference")
        run = perform.reference(place, self.dtype, self.device, folder, settings.steps)
        ready = Ready(plans, run.calls)
        if self.rank == 0:
            keep(done, ready)
        return ready

    def steps(self, world: World, ready: dict[int, Ready]) -> None:
        """The reader's step of every file under every plan that has not been run yet, on all ranks."""
        for index, each in ready.items():
            for plan in each.plans:
                runs = [self._traces(index, plan) / f"rank{rank}" / "run.pickle" for rank in range(world.size)]
                if world.gather(all(run.exists() for run in runs))[0]:
                    continue
                try:
                    self._step(world, index, plan, each.calls)
                except perform.UnequalStartError as error:
                    self._refuse(index, error, f"plan {plan.name}")
                    break

    def _step(self, world: World, index: int, plan: Plan, calls: int) -> None:
        folder = self._traces(index, plan) / f"rank{self.rank}"
        tell = partial(self.tell, index)
        tell(f"plan {plan.name}: build")
        perform.together(
            self.job.files[index],
            self.dtype,
            self.device,
            folder,
            plan,
            world,
            lambda doing, hint="": tell(f"plan {plan.name}: {doing}", hint),
            calls,
        )

    def _traces(self, index: int, plan: Plan) -> Path:
        return self.job.place(index) / plan.name

    def reports(self, ready: dict[int, Ready]) -> None:
        """Compare and explain."""
        with worlds.of_one(self.common.backend):
            for index, each in ready.items():
                if not self.job.report(index).exists():
                    self.tell(index, "comparison")
                    keep(self.job.report(index), self._report(index, each.plans))

    def _report(self, index: int, plans: list[Plan]) -> Report:
        place = self.job.files[index]
        try:
            return diagnose(place, self.job.place(index), plans, self.job.settings[index], self.device)
        except Exception as error:  # whatever we do wrong here is our fault, and is to be called so
            trace = "".join(traceback.format_exception(error))
            return failed(
                place, Failure(f"{type(error).__name__}: {error}", None, "comparison", log=trace, fault="ours")
            )

    def _refuse(self, index: int, error: Exception, doing: str) -> None:
        if self.rank == 0:
            trace = getattr(error, "own_traceback", "")
            failure = Failure(
                str(error), 0, doing, trace, hint=hint(self.job.settings[index], doing, str(error), trace)
            )
            keep(self.job.report(index), failed(self.job.files[index], failure))


def keep(place: Path, value: object) -> None:
    """Write a pickle that is there whole or not at all."""
    place.parent.mkdir(parents=True, exist_ok=True)
    fresh = place.with_suffix(".new")
    fresh.write_bytes(pickle.dumps(value))
    fresh.replace(place)


def work(job: Job, rank: int, size: int, address: str, timeout: timedelta, tell: Tell, *, everywhere: bool) -> None:
    """Do a rank's part. `everywhere`: every rank runs the references, so that none waits long for another."""
    here = Rank(job, rank, tell)
    ready = here.references() if rank == 0 or everywhere else {}
    world = World(job.common.backend, address, rank, size, timeout)
    ready = world.gather(ready)[0]
    here.steps(world, ready)
    world.gather(None)  # what every rank has recorded is on disk before rank 0 reads it
    del world
    worlds.leave()
    if rank == 0:
        here.reports(ready)


def join(job: Job, rank: int, size: int, show: Callable[[Report], int]) -> NoReturn:
    """Be a rank of torchrun's world: rank 0 shows the report; all end with their own code."""
    timeout = timedelta(seconds=job.common.timeout)
    current = {"doing": "start"}

    def end_alone(code: int) -> NoReturn:
        _end_children()
        end(code)

    def tell(index: int, doing: str, hint: str = "") -> None:
        current["doing"] = doing

    try:
        work(job, rank, size, "env://", timeout, tell, everywhere=True)
    except ReaderError as error:
        shutil.rmtree(job.folder, ignore_errors=True)
        failure = Failure(error.message, rank, current["doing"], error.own_traceback)
        if any(each in error.message for each in PEER_GONE):
            failure = Failure("lost its connection to another rank; that one says why", rank, current["doing"])
        print(f"samestep-lab: {failure}", file=sys.stderr)
        end_alone(2)
    if rank > 0:
        end_alone(0)
    report: Report = pickle.loads(job.report(0).read_bytes())
    shutil.rmtree(job.folder)
    end_alone(show(report))


def main(post: child.Post) -> None:
    """Be what `audit.launch` starts. A mistake in the reader's file goes to the parent with the reader's frames."""
    job: Job = pickle.loads((post.folder / "job.pickle").read_bytes())

    def tell(index: int, doing: str, hint: str = "") -> None:
        waits = doing.endswith(perform.WAITS)
        post.say(step=doing, file=index, waits=waits, together=waits or perform.CALLED in doing, hint=hint)

    try:
        work(job, post.rank, post.size, worlds.rendezvous(post.folder), LONG, tell, everywhere=False)
    except ReaderError as error:
        post.fail(error.message, traceback=error.own_traceback)
        end(2)


def _end_children() -> None:
    """End what the reader's step has started and left: torchrun gives every rank a process group of its own."""
    if os.getpgrp() == os.getpid():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.killpg(os.getpgrp(), signal.SIGTERM)


if __name__ == "__main__":
    child.run(main)
