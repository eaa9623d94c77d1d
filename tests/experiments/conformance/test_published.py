"""What is published of the lab: every verdict follows from its coefficients, by today's classifier."""

import math
from typing import Any, cast

import pytest

from samestep.app.evidence.bags import ConformanceRow, Library
from samestep.experiments.conformance.classifier import Finding, Resolution, classify, listing, resolve
from samestep.experiments.conformance.counters import counted
from samestep.experiments.conformance.faults import FAULTS
from samestep.experiments.conformance.frameworks import FRAMEWORKS
from samestep.experiments.conformance.scenarios import SCENARIOS, Kind
from tests.kit import CONTENT

RESULT = Library(CONTENT / "evidence").bag("conformance").result
ROWS = [cast(ConformanceRow, row) for row in RESULT["rows"]]
READ = [row for row in ROWS if row["kind"] in ("coefficients", "counters") and "reason" not in row["values"]]


def number(value: Any) -> float:
    return math.nan if value is None else float(value)


def found(row: ConformanceRow) -> Finding:
    """What the classifier says of the numbers that are published."""
    scenario, values = SCENARIOS[row["scenario"]], cast(dict[str, Any], row["values"])
    if row["kind"] == Kind.COUNTERS:
        return counted(values["updates"], values["count"], scenario)
    if row["verdict"] == "aborts":
        return Finding("aborts")
    cells = values.get("sequences") or [[[mean] for mean in rank] for rank in values["coefficients"]]
    tokens = [
        [
            [number(mean) for mean, n in zip(means, lengths, strict=True) for _ in range(n)]
            for means, lengths in zip(rank, line, strict=True)
        ]
        for rank, line in zip(cells, scenario.sequences, strict=True)
    ]
    later = [[[number(mean)] * bool(mean) for mean in rank] for rank in values.get("later", [])] or None
    if number(row["residual"]) > row["agrees"] or number(values["spread"]) > row["agrees"]:
        return Finding("other")
    return classify(tokens, scenario, row["agrees"], later, values.get("positions"))


def resolved(row: ConformanceRow) -> Resolution:
    """The setting's other scenarios of the same kind and release."""
    same = [
        each
        for each in READ
        if (each["framework"], each["setting"], each["version"], each["kind"])
        == (row["framework"], row["setting"], row["version"], row["kind"])
    ]
    return resolve({each["scenario"]: found(each) for each in same})


@pytest.mark.parametrize("row", READ, ids=lambda row: row["id"])
def test_the_verdict_follows_from_the_coefficients(row: ConformanceRow) -> None:
    finding, scenario = found(row), SCENARIOS[row["scenario"]]
    if row["verdict"] != "aborts":
        assert listing(finding.candidates, scenario) == row["candidates"]
        assert resolved(row).verdict(finding, scenario) == row["verdict"]


def test_at_least_twenty_systems_are_published_and_nothing_is_missing() -> None:
    assert len({row["framework"] for row in ROWS}) >= 20
    assert {row["framework"] for row in ROWS} == set(FRAMEWORKS)
    assert RESULT["not_measured"] == []
    assert all(row["met"] for row in ROWS)


def test_every_fault_of_the_table_is_seen_in_an_old_release() -> None:
    seen = [control for control in RESULT["controls"] if control["id"].startswith("fault-")]
    assert len(seen) == len(FAULTS)
    assert all(control["met"] for control in seen)


def test_a_changed_coefficient_would_not_keep_its_verdict() -> None:
    row = next(row for row in READ if row["verdict"] == "microbatch_equal" and row["scenario"] == "B")
    values = cast(dict[str, Any], row["values"])
    changed = cast(ConformanceRow, {**row, "values": {**values, "coefficients": [[0.125, 0.05], [0.05, 0.25]]}})
    assert found(changed).verdict == "other"
