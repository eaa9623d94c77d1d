"""Whatever is wrong with the reader's file: a message that names it and the rank, never a hang and never a verdict."""

from pathlib import Path

import pytest

from tests.experiments.audit.asked import ask

FILES = Path(__file__).parent / "files"
TIMEOUT = 15.0

MESSAGES = {
    "build_returns_model_only": "build() must return (model, optimizer)",
    "build_unseeded": "seed",
    "step_missing": "does not define step()",
    "too_few_samples": "needs at least 6 samples, data() gives 5",
    "raises_on_rank_1": "LookupError: the shard of rank 1 is missing",
    "killed_on_rank_1": "SIGKILL",
    "hangs_on_rank_1": "stuck",
}
ON_RANK_1 = [name for name in MESSAGES if name.endswith("_on_rank_1")]


REPORTS = ask({name: FILES / f"{name}.py" for name in MESSAGES}, timeout=TIMEOUT)


@pytest.mark.parametrize("name", MESSAGES)
def test_a_file_that_cannot_be_run_says_why(name: str) -> None:
    report = REPORTS[name]
    assert (report.verdict, report.code) == ("error", 2)
    assert MESSAGES[name] in str(report.failure)


@pytest.mark.parametrize("name", ON_RANK_1)
def test_the_rank_to_blame_is_named(name: str) -> None:
    failure = REPORTS[name].failure
    assert failure is not None
    assert failure.rank == 1


def test_the_readers_traceback_holds_no_frame_of_ours() -> None:
    failure = REPORTS["raises_on_rank_1"].failure
    assert failure is not None
    assert 'raises_on_rank_1.py", line' in failure.own_traceback
    assert "experiments/audit/" not in failure.own_traceback.replace("tests/experiments/audit/files", "")
