"""The end of a rank, without torch: what counts as done, and what is told of one that is not."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from samestep.experiments.audit import launch
from samestep.experiments.ranks.parent import Rank


@pytest.fixture
def ended(tmp_path: Path) -> Iterator[Rank]:
    """A process that has ended with code 0, as os._exit(0) in the reader's step would make it."""
    reader, writer = os.pipe()
    os.close(writer)
    process = subprocess.Popen([sys.executable, "-S", "-c", ""])
    process.wait()
    yield Rank(0, process, reader, tmp_path / "rank0.log")
    os.close(reader)


def test_a_rank_that_ends_with_code_0_before_it_is_done_has_failed(ended: Rank) -> None:
    assert ended.fallen
    ended.over = True
    assert not ended.fallen


def test_the_log_of_a_crashed_rank_is_shown_without_our_frames(tmp_path: Path) -> None:
    ours = Path(launch.__file__).parent / "rank.py"
    log = tmp_path / "rank0.log"
    log.write_text(f'Fatal\n  File "/home/me/step.py", line 3 in step\n  File "{ours}", line 9 in main\n')
    assert launch._tail(log) == '    | Fatal\n    |   File "/home/me/step.py", line 3 in step'
