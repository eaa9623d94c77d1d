"""Every file that a reader brought, alone or with the others of its options (on demand: 1 minute, torch alone)."""

import tomllib
from typing import Any

import pytest

from samestep.experiments.audit import Report, audit_many
from samestep.experiments.registry import ROOT

FOLDER = ROOT / "tests" / "experiments" / "audit" / "judged"
JUDGED: dict[str, dict[str, Any]] = tomllib.loads((FOLDER / "expected.toml").read_text("utf-8"))
ALIKE = {str(each.get("options", {})): each.get("options", {}) for each in JUDGED.values()}


@pytest.fixture(scope="module")
def reports() -> dict[str, Report]:
    found: dict[str, Report] = {}
    for options in ALIKE.values():
        names = [name for name, each in JUDGED.items() if each.get("options", {}) == options]
        found |= dict(zip(names, audit_many([FOLDER / f"{name}.py" for name in names], **options), strict=True))
    return found


@pytest.mark.parametrize("name", JUDGED)
def test_what_is_planted_is_what_is_named(reports: dict[str, Report], name: str) -> None:
    report, expected = reports[name], JUDGED[name]
    assert report.verdict == expected["verdict"], report
    if report.failure:
        assert expected["says"] in str(report.failure)
        return
    assert (report.cause, report.factor) == (expected.get("cause"), expected.get("factor")), report
    if not expected.get("anywhere"):
        assert report.first_difference == expected.get("first_difference"), report


def test_every_file_beside_the_table_is_in_it() -> None:
    there = {place.relative_to(FOLDER).with_suffix("").as_posix() for place in FOLDER.rglob("*.py")}
    beside = {"ports/gpt", "ports/orig_nanogpt", "small_lm"}
    assert there - beside == set(JUDGED)
