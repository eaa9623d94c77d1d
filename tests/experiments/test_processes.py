"""Processes meet without a launcher, and a rank that dies, stops or sticks ends the run with a readable message."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from samestep.experiments.ranks import parent
from samestep.experiments.ranks.launch import Job, Step, launch, workplace
from samestep.experiments.ranks.parent import Limits, RunFailedError
from samestep.experiments.registry import ROOT

pytestmark = pytest.mark.usefixtures("rank_programs")


@pytest.fixture
def started_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks begin as they do for readers, and not as forks: how they start, and how one is killed."""
    monkeypatch.setattr(parent, "subprocess", subprocess)


def job(what: str, processes: int = 2) -> Job:
    return Job(["lab_ranks"], processes, options={"do": what})


class Watcher:
    """Collects the ranks' process ids, and does something to rank 1 once both are in their loop."""

    def __init__(self, number: signal.Signals) -> None:
        self.number = number
        self.pids: dict[int, int] = {}
        self.threads: dict[int, int] = {}
        self.loops: set[int] = set()
        self.acted = 0.0

    def __call__(self, step: Step) -> None:
        if step.what.startswith("pid "):
            _, pid, _, threads = step.what.split()
            self.pids[step.rank], self.threads[step.rank] = int(pid), int(threads)
        if step.what == "loop":
            self.loops.add(step.rank)
        if self.loops == {0, 1} and not self.acted:
            self.acted = time.monotonic()
            os.kill(self.pids[1], self.number)


class Failure(threading.Thread):
    """A run that is expected to fail, in a thread: what it raised, and how long after the signal."""

    def __init__(self, what: str, folder: Path, watcher: Watcher | None = None, limits: Limits | None = None) -> None:
        super().__init__()
        self.job = job(what)
        self.folder = folder
        self.watcher = watcher
        self.limits = limits
        self.error: RunFailedError | None = None
        self.seconds = 0.0
        self.start()

    def run(self) -> None:
        try:
            launch(self.job, self.folder, self.watcher or (lambda step: None), self.limits)
        except RunFailedError as error:
            self.error = error
        if self.watcher:
            self.seconds = time.monotonic() - self.watcher.acted


@pytest.fixture(scope="module")
def waiting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Failure]]:
    """A stopped and a stuck rank. Both begin with the first test here, for most of the time they only wait."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent))
        failures = {
            "stopped": Failure("loop", tmp_path_factory.mktemp("stopped"), Watcher(signal.SIGSTOP)),
            "stuck": Failure("stick", tmp_path_factory.mktemp("stuck"), limits=Limits(stuck_after=25)),
        }
        yield failures
        for failure in failures.values():
            failure.join(100)


def gone(pid: int, within: float = 10.0) -> bool:
    """Whether the process is gone, or at most a zombie that nobody has collected, before the time is up."""
    until = time.monotonic() + within
    while time.monotonic() < until:
        place = Path(f"/proc/{pid}/stat")
        if not place.exists() or place.read_text().rpartition(")")[2].split()[0] == "Z":
            return True
        time.sleep(0.05)
    return False


def test_ranks_find_each_other_and_subgroups_work(waiting: dict[str, Failure], tmp_path: Path) -> None:
    launch(job("add", 3), tmp_path)
    found = json.loads((tmp_path / "lab_ranks" / "result.json").read_text())["found"]
    assert [total for total, *_ in found] == [6.0, 6.0, 6.0]  # 1 + 2 + 3
    assert [part for _, part, *_ in found] == [3.0, 3.0, 3.0]  # 1 + 2 on the pair, its own 3 on the third
    assert {dtype for *_, dtype in found} == {"torch.float64"}


@pytest.mark.usefixtures("started_as_ever")
def test_a_killed_rank_ends_the_run_within_ten_seconds(tmp_path: Path) -> None:
    failure = Failure("loop", tmp_path, Watcher(signal.SIGKILL))
    failure.join(60)
    assert failure.error is not None
    assert failure.watcher is not None
    assert failure.seconds < 10
    assert failure.error.rank == 1
    assert "rank 1 was killed by SIGKILL at step “loop”" in str(failure.error)
    assert failure.error.log == tmp_path / "rank1.log"
    assert failure.watcher.threads == {0: 1, 1: 1}
    assert all(gone(pid) for pid in failure.watcher.pids.values())


def test_the_first_failing_rank_is_named_with_its_error_and_its_log(tmp_path: Path) -> None:
    with pytest.raises(RunFailedError) as caught:
        launch(job("raise"), tmp_path)
    message = str(caught.value)
    assert "rank 1 failed (ValueError: rank 1 has had enough) at step “the step that raises”" in message
    assert str(tmp_path / "rank1.log") in message
    assert "ValueError: rank 1 has had enough" in caught.value.log.read_text()


def test_a_rank_that_aborts_without_an_exception_is_named_too(tmp_path: Path) -> None:
    with pytest.raises(RunFailedError, match="rank 1 was killed by SIGABRT at step “the step that aborts”"):
        launch(job("leave"), tmp_path)


def test_the_limits_stay_within_a_minute() -> None:
    limits = Limits()
    assert max(limits.silent_after, limits.stuck_after) <= 55


def test_a_rank_does_not_outlive_a_killed_parent_even_when_it_is_stopped(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from samestep.experiments.ranks.launch import Job, launch\n"
        f"launch(Job(['lab_ranks'], 1, options={{'do': 'loop'}}), Path({str(tmp_path)!r}),"
        " lambda step: print(step.what, flush=True))"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = next(int(line.split()[1]) for line in parent.stdout if line.startswith("pid "))
    os.kill(pid, signal.SIGSTOP)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert gone(pid)


def test_a_workplace_goes_with_the_run_and_stays_after_a_failure() -> None:
    with workplace() as folder:
        (folder / "rank0.log").touch()
    assert not folder.exists()
    with pytest.raises(RuntimeError), workplace() as kept:
        raise RuntimeError
    assert kept.exists()
    kept.rmdir()


def test_a_stuck_rank_is_told_from_those_that_wait_for_it(waiting: dict[str, Failure]) -> None:
    waiting["stuck"].join(100)
    error = waiting["stuck"].error
    assert error is not None
    assert "rank 1 is stuck: nothing has moved for 25 s at step “the step that hangs”" in str(error)
    assert "in stick" in error.log.read_text()  # the log shows where


def test_a_stopped_rank_ends_the_run_within_a_minute(waiting: dict[str, Failure]) -> None:
    stopped = waiting["stopped"]
    stopped.join(100)
    assert stopped.error is not None
    assert stopped.watcher is not None
    assert stopped.seconds < 60
    assert "rank 1 gave no sign of life for 30 s at step “loop”" in str(stopped.error)
    assert all(gone(pid) for pid in stopped.watcher.pids.values())
