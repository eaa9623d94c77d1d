"""Does an audit name what is wrong? One right file and three with a planted fault, the way a reader would bring them.

    python -m experiments run audit_walkthrough

Set-up. Softmax regression on N = 60 samples, SGD with momentum, DistributedDataParallel on Gloo, P = 2 processes with
K = 3 microbatches each. The files are in `audit/walkthrough/`; each step differs from the right one in one line.

Reference. The file's own step on one process, all 60 samples as one microbatch.

What is compared. Loss, gradient and parameters, by the audit itself. The right file must be the same update; a wrong
one must differ, first in the gradient, and the audit must name the fault that was planted, with its factor or its
weights. The negative control deals the samples out evenly: then dividing by the rank's own count is no fault at all,
and the audit must not claim one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from samestep.app.evidence.bags import Control, Expectation, Json, Result, Row, Text
from samestep.experiments.audit import Report, Settings, audit_many
from samestep.experiments.audit.running import plans
from samestep.experiments.audit.telling.printing import printed
from samestep.experiments.audit.telling.report import PlanReport
from samestep.experiments.measured import environment
from samestep.experiments.ranks import Tell
from samestep.experiments.results import control, result, row, write

QUESTION: Text = {
    "zh": "训练步里埋一个错误，审计能说出是哪一个吗？",
    "en": "With a fault planted in a training step, does the audit say which one?",
}
PROCESSES = 2
ALONE = True
LAUNCHER = "samestep.experiments.audit_walkthrough"
SCOPE: Text = {
    "zh": "CPU、Gloo、float64，18 个参数的线性分类器，SGD 带动量。只有这三种错误；其余种类由审计自己的测试覆盖。",
    "en": "CPU, Gloo, float64, a linear classifier of 18 parameters, SGD with momentum, no clipping. These three "
    "faults only; the audit's own tests plant many more.",
}
MICROBATCHES = 3
SAMPLES = 60
FILES = Path(__file__).parent / "audit" / "walkthrough"
COMPARED = ("loss", "gradient", "parameters")


@dataclass(frozen=True)
class Subject:
    """A file, and what was planted in it: cause and factor as the audit codes them. `loss`: whether that shows it."""

    title: Text
    cause: str | None = None
    factor: str | None = None
    loss: Expectation = "agrees"

    @property
    def expectation(self) -> Expectation:
        return "differs" if self.cause else "agrees"

    @property
    def named(self) -> tuple[str, str | None, str | None, str | None]:
        """Verdict, first difference, cause and factor that the audit must give."""
        return ("different", "gradient", self.cause, self.factor) if self.cause else ("same", None, None, None)


SUBJECTS: dict[str, Subject] = {
    "global_count": Subject({"zh": "正确：P·S/N", "en": "right: P·S/N"}),
    "rank_means": Subject(
        {"zh": "每个 rank 除以自己的计数", "en": "each rank divides by its own count"},
        "replica_equal",
        loss="differs",
    ),
    "sum_over_n": Subject({"zh": "只有 S/N，漏乘 P", "en": "S/N alone, P left out"}, "scale", "1/P"),
    "zeroed_inside": Subject({"zh": "在循环里清零", "en": "zeroed inside the loop"}, "dropped_microbatch"),
}
CASES: dict[str, Text] = {
    "ragged": {"zh": "各格样本数都不同", "en": "a different number of samples in every cell"},
    "contiguous": {"zh": "各格样本数相同", "en": "as many samples in every cell"},
}


def run(place: Path, options: Mapping[str, Json], tell: Tell) -> Result:
    """Audit the files and write `place/audit_walkthrough/`: result.json, and the printed report of one of them."""
    tell(f"audit {', '.join(SUBJECTS)}", None)
    dealt = [plan for name in CASES for plan in plans.named(name, SAMPLES, PROCESSES, MICROBATCHES)]
    reports = dict(zip(SUBJECTS, audit_many([FILES / f"{name}.py" for name in SUBJECTS], plan=dealt), strict=True))
    made = _result(reports)
    shown = reports["rank_means"]
    shown = replace(shown, plans=shown.plans[:1])
    folder = write(made, place)
    for language in ("zh", "en"):
        (folder / f"rank_means.{language}.txt").write_text(printed(shown, language) + "\n", "utf-8")
    return made


def _result(reports: Mapping[str, Report]) -> Result:
    rows = [_row(name, plan) for name, report in reports.items() for plan in report.plans if _wanted(name, plan)]
    in_the_ranks: dict[str, Json] = {"threads": 1, "dtype": Settings().dtype, "deterministic_algorithms": True}
    return result(
        __name__,
        PROCESSES,
        question=QUESTION,
        scope=SCOPE,
        setup={"samples": SAMPLES, "processes": PROCESSES, "microbatches": MICROBATCHES, "optimizer": "sgd"},
        cases=CASES,
        paths={name: subject.title for name, subject in SUBJECTS.items()},
        rows=rows,
        controls=_controls(reports),
        environment=environment() | in_the_ranks,
    )


def _wanted(name: str, plan: PlanReport) -> bool:
    """Every file on unequal cells; on equal ones the right file, and the fault that they hide."""
    return plan.name == "ragged" or name in ("global_count", "rank_means")


def _row(name: str, plan: PlanReport) -> Row:
    """What the audit measured and said; met if it agrees with what was planted, and where that cannot show, silent."""
    planted = SUBJECTS[name] if plan.name == "ragged" else Subject(SUBJECTS[name].title)
    stages = {stage.stage: stage.max_abs_difference for stage in plan.stages}
    weights = plan.finding.weights if plan.finding else None
    return row(
        plan.name,
        name,
        SUBJECTS[name].title,
        planted.expectation,
        {quantity: stages[quantity] for quantity in COMPARED},
        expected={"loss": planted.loss},
        values={
            "verdict": plan.verdict,
            "first_difference": plan.first_difference,
            "cause": plan.cause,
            "factor": plan.factor,
            "counts": [list(counts) for counts in plan.counts],
            "weights": _rounded(weights.observed) if weights else None,
            "right_weights": _rounded(weights.expected) if weights else None,
        },
        also=(plan.verdict, plan.first_difference, plan.cause, plan.factor) == planted.named,
    )


def _rounded(weights: Sequence[Sequence[float]]) -> Json:
    """To 12 decimals: what is left of a lost cell by least squares is rounding, and means 0."""
    return [[round(weight, 12) + 0.0 for weight in row] for row in weights]


def _controls(reports: Mapping[str, Report]) -> list[Control]:
    audited = [plan for report in reports.values() for plan in report.plans]
    fewest = min((rank.collectives for plan in audited for rank in plan.ranks), default=0)
    ragged = next((plan.counts for plan in audited if plan.name == "ragged"), ())
    cells, totals = [count for rank in ragged for count in rank], [sum(rank) for rank in ragged]
    failures = [str(report.failure) for report in reports.values() if report.failure]
    return [
        control(
            "audited",
            {"zh": "每个文件都审计完了", "en": "every file was audited"},
            len(audited) == len(SUBJECTS) * len(CASES),
            audits=len(audited),
            **({"failure": failures[0]} if failures else {}),
        ),
        control(
            "counts-differ",
            {"zh": "各格、各 rank 的样本数确实互不相同", "en": "cells and ranks do have different numbers of samples"},
            len(set(cells)) == PROCESSES * MICROBATCHES and len(set(totals)) == PROCESSES,
            ranks=list(totals),
        ),
        control(
            "reduced",
            {"zh": "每个 rank 的每次运行都有集合通信", "en": "every rank communicated in every run"},
            fewest > 0,
            fewest=fewest,
        ),
    ]
