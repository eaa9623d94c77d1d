"""What an audit found, as frozen values: for people, for machines (`as_json`), and for the page."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from samestep.app.evidence.bags import Text
from samestep.experiments.audit.failure import Failure
from samestep.experiments.audit.judging.parameters import ParameterRow
from samestep.experiments.audit.settings import Settings

Verdict = Literal["same", "different", "vacuous", "error"]
Status = Literal["same", "different", "follows", "not compared"]


@dataclass(frozen=True)
class Stage:
    """One comparison. `max_abs_difference` is None where nothing could be compared; `worst` names tensors."""

    stage: str
    status: Status
    max_abs_difference: float | None
    allowed: float | None = None
    worst: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class Weights:
    """Effective weights, `[rank][microbatch]`: what was observed beside what the reference gives."""

    observed: tuple[tuple[float, ...], ...]
    expected: tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Site:
    """One call in the reader's files: what it is, `file.py:31`, and the line."""

    event: str
    place: str
    line: str


@dataclass(frozen=True)
class Finding:
    """A cause with its sentence and evidence. `chapter` and `calculator` are addresses within the book.

    term   the summand of the loss that is meant; None for all of it
    only   the tensors that are meant, where not all are
    sites  what is meant in the reader's files: `backward` → `my_step.py:31`, with the line itself
    edit   what to write there
    """

    cause: str
    sentence: Text
    factor: str | None = None
    factors: tuple[str, ...] = ()
    evidence: tuple[Text, ...] = ()
    weights: Weights | None = None
    chapter: str = ""
    calculator: str = ""
    term: str | None = None
    only: tuple[str, ...] = ()
    sites: tuple[Site, ...] = ()
    edit: Text | None = None


@dataclass(frozen=True)
class RankLog:
    """What a rank did: its events in order, losses, norms, how many collectives it issued."""

    rank: int
    events: tuple[str, ...]
    losses: tuple[float, ...]
    norms: tuple[float, ...]
    collectives: int
    leftover: float = 0.0


@dataclass(frozen=True)
class PlanReport:
    """One plan: its cells, the stages in order, and the finding. `sizes` counts samples, `counts` their weights.

    update    the one that is shown, of `updates` that could be compared: the first that differs, else the first
    """

    name: str
    sizes: tuple[tuple[int, ...], ...]
    counts: tuple[tuple[float, ...], ...]
    verdict: Verdict
    stages: tuple[Stage, ...]
    first_difference: str | None = None
    finding: Finding | None = None
    parameters: tuple[ParameterRow, ...] = ()
    reference: RankLog | None = None
    ranks: tuple[RankLog, ...] = ()
    limits: tuple[Text, ...] = ()
    notes: tuple[Text, ...] = ()
    update: int = 1
    updates: int = 1

    @property
    def cause(self) -> str | None:
        """The finding's code."""
        return self.finding.cause if self.finding else None

    @property
    def factor(self) -> str | None:
        """The finding's factor."""
        return self.finding.factor if self.finding else None


SCHEMA = "samestep.audit/2"
"""Of the report for machines: another number where a key has another meaning or is gone."""
SAME: Text = {
    "en": "The same update: every plan agrees with one process at every stage that was compared.",
    "zh": "是同一次更新：每个方案在所比较的每一级都与单进程一致。",
}
EQUAL_ONLY = ("contiguous",)
"""Plans that a wrong weighting can pass."""

_WORST: tuple[Verdict, ...] = ("error", "different", "vacuous", "same")


@dataclass(frozen=True)
class Report:
    """The audit of one file. What it says as a whole is what its worst plan says."""

    file: Path
    plans: tuple[PlanReport, ...] = ()
    failure: Failure | None = None
    settings: Settings = field(default_factory=Settings)
    samples: int = 0
    weight: float = 0.0
    parameters: int = 0

    @property
    def headline(self) -> PlanReport | None:
        """The plan with the worst verdict, the first of its kind."""
        return min(self.plans, key=lambda plan: _WORST.index(plan.verdict), default=None)

    @property
    def verdict(self) -> Verdict:
        """same, different, vacuous or error."""
        return self.headline.verdict if self.headline and not self.failure else "error"

    @property
    def first_difference(self) -> str | None:
        """The first stage that differs."""
        return self.headline.first_difference if self.headline else None

    @property
    def cause(self) -> str | None:
        """The code of what is wrong."""
        return self.headline.cause if self.headline else None

    @property
    def factor(self) -> str | None:
        """The factor of a scale error, by name."""
        return self.headline.factor if self.headline else None

    @property
    def code(self) -> int:
        """The exit code: 0 same, 1 different or vacuous, 2 could not be run."""
        return {"same": 0, "different": 1, "vacuous": 1, "error": 2}[self.verdict]

    @property
    def sentence(self) -> Text:
        """The whole report in one sentence."""
        if self.failure:
            return {"en": str(self.failure).partition("\n")[0], "zh": str(self.failure).partition("\n")[0]}
        return self.headline.finding.sentence if self.headline and self.headline.finding else SAME

    @property
    def across(self) -> tuple[Text, ...]:
        """What the plans say together: where they do not agree, that is shown as such."""
        by_verdict = {plan.name: plan.verdict for plan in self.plans}
        passed = [name for name in EQUAL_ONLY if by_verdict.get(name) == "same"]
        failed_ones = [plan for plan in self.plans if plan.verdict == "different"]
        found: list[Text] = []
        if passed and any(plan.name not in EQUAL_ONLY for plan in failed_ones):
            names = ", ".join(plan.name for plan in failed_ones)
            found.append(
                {
                    "en": f"Right only while microbatches are equal: {passed[0]} is the same, {names} is not.",
                    "zh": f"只有各微批相等时才正确：{passed[0]} 相同，{names} 不同。",
                }
            )
        causes = {plan.name: plan.cause for plan in failed_ones}
        if len(set(causes.values())) > 1:
            shown = "; ".join(f"{name}: {cause}" for name, cause in causes.items())
            found.append(
                {
                    "en": f"The plans show different causes ({shown}); the first one is the headline.",
                    "zh": f"各方案显示的原因不同（{shown}）；标题取第一个。",
                }
            )
        return tuple(found)

    def __str__(self) -> str:
        from samestep.experiments.audit.telling.printing import printed

        return printed(self, "en")


def failed(file: Path, failure: Failure) -> Report:
    """The report of an audit that could not be run."""
    return Report(file, failure=failure)


def as_json(report: Report) -> str:
    """The machine-readable report; numbers that are not finite are null."""
    headline = report.headline
    finding = headline.finding if headline else None
    value: dict[str, Any] = {
        "schema": SCHEMA,
        "file": report.file.name,
        "sentence": report.sentence,
        "verdict": report.verdict,
        "first_difference": report.first_difference,
        "cause": report.cause,
        "factor": report.factor,
        "stages": [_stage(stage) for stage in headline.stages] if headline else [],
        "weights": finding.weights.observed if finding and finding.weights else None,
        "plans": [_plan(plan) for plan in report.plans],
        "across_plans": report.across,
        "failure": asdict(report.failure) if report.failure else None,
        "samples": report.samples,
        "weight": report.weight,
        "parameters": report.parameters,
        "processes": report.settings.ranks,
        "microbatches": report.settings.cells,
        "backend": report.settings.backend,
        "dtype": report.settings.dtype,
        "atol": report.settings.tolerance,
        "steps": report.settings.steps,
    }
    return json.dumps(_finite(value), ensure_ascii=False, allow_nan=False, indent=1) + "\n"


def _stage(stage: Stage) -> dict[str, Any]:
    return asdict(stage)


def _plan(plan: PlanReport) -> dict[str, Any]:
    return {
        **asdict(plan),
        "cause": plan.cause,
        "factor": plan.factor,
        "stages": [_stage(stage) for stage in plan.stages],
    }


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if value - value == 0 else None
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_finite(each) for each in value]
    return value
