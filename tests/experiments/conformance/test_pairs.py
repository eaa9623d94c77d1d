"""A measurement that crashes or hangs is never good, and the others are made nevertheless."""

import time
from pathlib import Path

import pytest

from samestep.experiments.conformance.frameworks import Framework
from samestep.experiments.conformance.pairs import Report, measure_together
from samestep.experiments.conformance.rows import Subject, rows_of

PROGRAMS = Path(__file__).parents[1]
FRAMEWORK, ABSENT, CALM = (
    Framework(name, name.title(), ("numpy",), seconds=6.0, adapter=adapter, torch=False)
    for name, adapter in (("trouble", "troublesome"), ("absent", "no_such_adapter"), ("calm", "calm"))
)


@pytest.fixture(scope="module")
def reports() -> list[Report]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(PROGRAMS))
        return measure_together([FRAMEWORK, ABSENT, CALM], [], lambda what, done: None)


@pytest.fixture(scope="module")
def report(reports: list[Report]) -> Report:
    return reports[0]


def test_what_crashes_and_what_hangs_has_its_reason(report: Report) -> None:
    assert report.failed == {
        ("aborts", "A"): "rank 1 was killed by SIGABRT",
        ("hangs", "A"): "nothing moved for 6 s",
    }


def test_what_came_before_is_measured_on_both_ranks(report: Report) -> None:
    assert list(report.measured) == [("good", "A")]
    assert len(report.measured["good", "A"]) == 2


def test_what_the_adapter_declines_is_not_measured(report: Report) -> None:
    assert report.unavailable == {("missing", "A"): "no such compiler"}


def test_only_a_crash_that_is_expected_makes_a_row_that_is_met(report: Report) -> None:
    rows = {row["setting"]: row for row in rows_of(Subject(FRAMEWORK, "1.2", None), report)}
    assert {name: (row["verdict"], row["met"]) for name, row in rows.items()} == {
        "good": ("dropped", True),
        "aborts": ("aborts", True),
        "hangs": ("not_measured", False),
    }
    assert rows["hangs"]["id"] == "a-trouble-hangs-1-2"


def test_no_process_stays_behind(report: Report) -> None:
    deadline = time.monotonic() + 5
    while left := [place for place in Path("/proc").glob("[0-9]*/cmdline") if _ours(place)]:
        assert time.monotonic() < deadline, left


def _ours(place: Path) -> bool:
    """Whether it is a child of this test; a process may be gone before it is read."""
    try:
        words = place.read_bytes().split(b"\0")
        environment = (place.parent / "environ").read_bytes()
    except OSError:
        return False
    return b"samestep.experiments.conformance.child" in words and f"PYTHONPATH={PROGRAMS}".encode() in environment


def test_an_adapter_that_cannot_be_imported_is_a_problem_and_no_row(reports: list[Report]) -> None:
    report = reports[1]
    assert report.problem is not None
    assert "No module named 'no_such_adapter'" in report.problem
    assert list(rows_of(Subject(ABSENT, "1", None), report)) == []


def test_who_shares_the_processes_of_one_that_fails_is_measured_nevertheless(reports: list[Report]) -> None:
    last = reports[2]
    assert (list(last.measured), last.failed, last.problem) == ([("good", "A")], {}, None)
    assert last.measured["good", "A"] == reports[0].measured["good", "A"]
