"""From what a framework's processes said to rows: one a measurement, with its verdict in the light of the others."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from samestep.app.evidence.bags import AGREES, ConformanceRow, Expectation
from samestep.experiments.conformance import classifier, verdicts
from samestep.experiments.conformance.frameworks import Framework, Release
from samestep.experiments.conformance.pairs import Report, Task
from samestep.experiments.conformance.scenarios import SCENARIOS
from samestep.experiments.conformance.verdicts import Judged


@dataclass(frozen=True)
class Subject:
    """A framework in one version; `release` None: as it is installed."""

    framework: Framework
    version: str
    release: Release | None


def rows_of(subject: Subject, report: Report) -> Iterator[ConformanceRow]:
    """One row for each task that was measured or failed."""
    judged = {task: _judge(report, task) for task in report.measured}
    for task in report.tasks:
        if task in judged:
            yield _row(subject, report, task, judged[task], _resolved(task, judged))
        elif task in report.failed:
            yield _row(subject, report, task, _failed(report, task), None)


def _judge(report: Report, task: Task) -> Judged:
    setting = report.settings[task[0]]
    return verdicts.judge(report.measured[task], SCENARIOS[task[1]], expected(report, task), setting["tolerance"])


def expected(report: Report, task: Task) -> Any:
    return report.settings[task[0]]["expected"][task[1]]


def _resolved(task: Task, judged: Mapping[Task, Judged]) -> str:
    """The verdict in the light of the setting's other scenarios."""
    findings = {
        scenario: each.finding for (setting, scenario), each in judged.items() if setting == task[0] and each.finding
    }
    return verdicts.in_light_of(judged[task], classifier.resolve(findings), SCENARIOS[task[1]])


def _failed(report: Report, task: Task) -> Judged:
    """A measurement that brought the processes down: as expected (`aborts`), or not measured, which is never good."""
    aborts = expected(report, task) == "aborts"
    expectation: Expectation = "undefined" if aborts else "agrees"
    verdict = "aborts" if aborts else "not_measured"
    return Judged(
        kind=SCENARIOS[task[1]].kind,
        verdict=verdict,
        candidates=[verdict],
        expectation=expectation,
        expected={"measurement": expectation},
        differences={"measurement": None},
        values={} if aborts else {"reason": report.failed[task]},
        agrees=AGREES,
        fits=aborts,
    )


def _row(subject: Subject, report: Report, task: Task, judged: Judged, verdict: str | None) -> ConformanceRow:
    name, scenario = task
    setting = report.settings[name]
    path = f"{subject.framework.id}-{name}-{subject.version}"
    said = verdict or judged.verdict
    row: ConformanceRow = {
        "id": slug(f"{scenario}-{path}"),
        "case": scenario,
        "path": slug(path),
        "title": setting["title"],
        "note": setting["about"],
        "framework": subject.framework.id,
        "setting": name,
        "version": subject.version,
        "scenario": scenario,
        "kind": judged.kind.value,
        "coefficients": judged.coefficients,
        "residual": judged.residual,
        "verdict": said,
        "candidates": judged.candidates,
        "packages": report.packages,
        "labels": list(setting["labels"]),
        "expectation": judged.expectation,
        "expected": judged.expected,
        "max_abs_difference": judged.differences,
        "values": {
            **judged.values,
            "verdict": said,
            "candidates": " | ".join(judged.candidates),
            "tolerance": judged.agrees,
        },
        "agrees": judged.agrees,
        "met": verdicts.met(judged),
    }
    return row


def slug(text: str) -> str:
    """As rows are named: a dot would end a step of a dotted path."""
    return text.lower().replace("_", "-").replace(".", "-")
