"""Whatever is wrong with the reader's file: a message that names it and the rank, never a hang and never a verdict."""

from pathlib import Path

import pytest

from samestep.experiments.audit import Report, audit_many

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


@pytest.fixture(scope="module")
def reports() -> dict[str, Report]:
    files = [FILES / f"{name}.py" for name in MESSAGES]
    return dict(zip(MESSAGES, audit_many(files, timeout=TIMEOUT), strict=True))


@pytest.mark.parametrize("name", MESSAGES)
def test_a_file_that_cannot_be_run_says_why(reports: dict[str, Report], name: str) -> None:
    report = reports[name]
    assert (report.verdict, report.code) == ("error", 2)
    assert MESSAGES[name] in str(report.failure)


@pytest.mark.parametrize("name", ON_RANK_1)
def test_the_rank_to_blame_is_named(reports: dict[str, Report], name: str) -> None:
    failure = reports[name].failure
    assert failure is not None
    assert failure.rank == 1


def test_the_readers_traceback_holds_no_frame_of_ours(reports: dict[str, Report]) -> None:
    failure = reports["raises_on_rank_1"].failure
    assert failure is not None
    assert 'raises_on_rank_1.py", line' in failure.own_traceback
    assert "experiments/audit/" not in failure.own_traceback.replace("tests/experiments/audit/files", "")
