"""Which processes use the processor, by the system's own account."""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from samestep.experiments.ranks.idleness import Idleness, _spent

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="only where the system tells it")


@pytest.fixture
def sleeper() -> Iterator[int]:
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", "import time; print('up', flush=True); time.sleep(600)"], stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.readline()
    yield process.pid
    process.kill()
    process.wait()
    process.stdout.close()


@pytest.fixture
def worker() -> Iterator[int]:
    process = subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"])
    yield process.pid
    process.kill()
    process.wait()


def test_a_process_that_sleeps_is_idle_for_as_long_as_asked_and_then_the_span_begins_anew(sleeper: int) -> None:
    idleness = Idleness([sleeper])
    found = [idleness.lasts(10.0, now, 0.0) for now in (2.0, 9.0, 13.0, 15.0, 22.0, 24.0)]
    assert found == [False, False, True, False, False, True]


def test_movement_counts_as_well_as_work(sleeper: int) -> None:
    idleness = Idleness([sleeper])
    idleness.lasts(10.0, 2.0, 0.0)
    assert not idleness.lasts(10.0, 20.0, 19.0)


def test_one_that_works_keeps_all_from_being_idle(sleeper: int, worker: int) -> None:
    idleness = Idleness([sleeper, worker])
    while (used := _spent(worker)) is not None and used < 0.3:
        time.sleep(0.05)
    assert not idleness.lasts(1.0, 4.0, 0.0)
