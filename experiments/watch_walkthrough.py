"""What does every token of a whole training weigh? Six scripts, unmodified, watched while they train.

    python -m experiments run watch_walkthrough

Set-up. A small language model, AdamW, clipping; P = 2 Gloo processes with K = 3 microbatches each, two updates, with a
different number of labels in every cell. The scripts are in `watch/walkthrough/`; nothing in them knows of watch.

Reference. The rule that each script's loss follows, by hand, for n labels in a cell, n_r on a rank, N in the update: a
mean of means gives a token 1/(P·K·n), a mean over each rank's labels 1/(P·n_r), the global token mean 1/N.

What is compared. The share (weight × N) that watch reads for every cell, to six decimals, with the rule's, and with 1.
A framework that is not installed is not measured. The control checks that the counts would show a wrong rule.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from samestep.app.evidence.bags import Expectation, Json, NotMeasured, Result, Row, Text
from samestep.experiments.measured import environment
from samestep.experiments.ranks import Tell
from samestep.experiments.results import control, result, row, write
from samestep.experiments.watch import Report, watch
from samestep.experiments.watch.telling.printing import printed
from samestep.experiments.watch.telling.report import UpdateReport

QUESTION: Text = {
    "zh": "不改动训练脚本，每个 token 在一次更新里究竟占多大权重？",
    "en": "With the training script left as it is, what does every token weigh in an update?",
}
PROCESSES = 2
ALONE = True
LAUNCHER = "samestep.experiments.watch_walkthrough"
SCOPE: Text = {
    "zh": "CPU、Gloo、float32、两个进程，极小的模型，两次更新。AdamW 的动量、权重衰减与学习率不在所测权重之内。",
    "en": "CPU, Gloo, float32, two processes, tiny models, two updates. AdamW's moments, weight decay and learning "
    "rate are outside of the weights that are read.",
}
FOLDER = Path(__file__).parent / "watch" / "walkthrough"
UPDATES = 2
Counts = list[list[int]]


def mean_of_means(counts: Counts) -> list[list[float]]:
    """Shares, as of all rules."""
    total = sum(map(sum, counts))
    return [[total / (len(counts) * len(rank) * n) for n in rank] for rank in counts]


def rank_means(counts: Counts) -> list[list[float]]:
    total = sum(map(sum, counts))
    return [[total / (len(counts) * sum(rank)) for _ in rank] for rank in counts]


def global_mean(counts: Counts) -> list[list[float]]:
    return [[1.0 for _ in rank] for rank in counts]


@dataclass(frozen=True)
class Subject:
    """A script, what starts it, the rule of its loss, and the cause that watch must name."""

    title: Text
    package: str
    arguments: tuple[str, ...]
    rule: Callable[[Counts], list[list[float]]]
    cause: str | None = None


SUBJECTS: dict[str, Subject] = {
    "ddp_mean": Subject(
        {"zh": "DDP，均值的均值", "en": "DDP, a mean of means"},
        "torch",
        ("ddp_mean.py",),
        mean_of_means,
        "microbatch_equal",
    ),
    "ddp_global": Subject({"zh": "DDP，P·S/N", "en": "DDP, P·S/N"}, "torch", ("ddp_global.py",), global_mean),
    "fsdp2_mean": Subject(
        {"zh": "FSDP2 默认", "en": "FSDP2 as it comes"}, "torch", ("fsdp2_mean.py",), mean_of_means, "microbatch_equal"
    ),
    "accelerate_recipe": Subject(
        {"zh": "accelerate 的配方", "en": "accelerate's recipe"}, "accelerate", ("accelerate_recipe.py",), global_mean
    ),
    "trainer_default": Subject(
        {"zh": "transformers Trainer 默认", "en": "transformers' Trainer, defaults"},
        "transformers",
        ("trainer.py",),
        global_mean,
    ),
    "trainer_average_off": Subject(
        {"zh": "Trainer，average_tokens_across_devices=False", "en": "Trainer, average_tokens_across_devices=False"},
        "transformers",
        ("trainer.py", "average_off"),
        rank_means,
        "replica_equal",
    ),
}
CASES: dict[str, Text] = {
    f"update{number}": {"zh": f"第 {number + 1} 次更新", "en": f"update {number + 1}"} for number in range(UPDATES)
}


def run(place: Path, options: Mapping[str, Json], tell: Tell) -> Result:
    """Watch the scripts and write `place/watch_walkthrough/`: result.json, and the printed report of the first."""
    reports, absent = {}, []
    for i, (name, subject) in enumerate(SUBJECTS.items()):
        tell(f"watch {name}", i / len(SUBJECTS))
        if _version(subject.package) is None:
            absent.append(NotMeasured(framework=subject.package, version="", setting=name, reason="not installed"))
        else:
            script, *arguments = subject.arguments
            reports[name] = watch(FOLDER / script, *arguments, processes=PROCESSES, updates=UPDATES, timeout=240)
    made = _result(reports, absent)
    folder = write(made, place)
    for language in ("zh", "en"):
        (folder / f"ddp_mean.{language}.txt").write_text(printed(reports["ddp_mean"], language) + "\n", "utf-8")
    return made


def _version(package: str) -> str | None:
    try:
        return version(package).partition("+")[0]
    except PackageNotFoundError:
        return None


def _result(reports: Mapping[str, Report], absent: list[NotMeasured]) -> Result:
    rows = [_row(name, update) for name, report in reports.items() for update in report.updates]
    failures = [str(report.failure or report.refusal) for report in reports.values() if report.verdict == "error"]
    counts = _counts(reports["ddp_mean"].updates[0]) if reports["ddp_mean"].updates else []
    totals = [sum(rank) for rank in counts]
    return result(
        __name__,
        PROCESSES,
        question=QUESTION,
        scope=SCOPE,
        setup={"processes": PROCESSES, "microbatches": 3, "updates": UPDATES, "optimizer": "adamw"},
        cases=CASES,
        paths={name: subject.title for name, subject in SUBJECTS.items()},
        rows=rows,
        controls=[
            control(
                "watched",
                {
                    "zh": "每个脚本都走完，每次更新都读到",
                    "en": "every script ended well, and every update was read",
                },
                len(rows) == UPDATES * len(reports) and not failures,
                updates=len(rows),
                **({"failure": failures[0]} if failures else {}),
            ),
            control(
                "counts-differ",
                {"zh": "各格、各 rank 的标签数互不相同", "en": "cells and ranks have different numbers of labels"},
                len({n for rank in counts for n in rank}) == 6 and len(set(totals)) == PROCESSES,
                ranks=list(totals),
            ),
            control(
                "explained",
                {"zh": "梯度确实是所见各次反向之和", "en": "gradients are sums of the backwards that were seen"},
                all((update.residual or 0.0) < 1e-6 for report in reports.values() for update in report.updates),
            ),
        ],
        environment=environment() | {"threads": 1, "dtype": "float32"},
        command="python -m experiments run watch_walkthrough",
        not_measured=absent,
    )


def _counts(update: UpdateReport) -> Counts:
    return [[cell.n for cell in rank] for rank in update.cells]


def _row(name: str, update: UpdateReport) -> Row:
    """Shares as they were read; met if they follow the rule, and watch names what the rule is."""
    subject, counts = SUBJECTS[name], _counts(update)
    shares = [[round(cell.share or 0.0, 6) for cell in rank] for rank in update.cells]
    expectation: Expectation = "differs" if subject.cause else "agrees"
    made = row(
        f"update{update.index}",
        name,
        subject.title,
        expectation,
        {"from_global_mean": _away(shares, global_mean(counts)), "from_rule": _away(shares, subject.rule(counts))},
        expected={"from_rule": "agrees"},
        values={
            "verdict": update.verdict,
            "cause": update.cause,
            "counts": [list(rank) for rank in counts],
            "shares": [list(rank) for rank in shares],
            "N": update.N,
        },
        also=(update.verdict, update.cause) == (("different", subject.cause) if subject.cause else ("same", None)),
    )
    where = {"framework": subject.package, "version": _version(subject.package) or "", "setting": name}
    return {**made, **where}  # type: ignore[typeddict-item]  # so that `verify` knows what this machine cannot repeat


def _away(shares: list[list[float]], wanted: list[list[float]]) -> float:
    """Largest difference, to six decimals."""
    pairs = [(a, b) for one, other in zip(shares, wanted, strict=True) for a, b in zip(one, other, strict=True)]
    return max(round(abs(a - round(b, 6)), 6) for a, b in pairs)
