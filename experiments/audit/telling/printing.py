"""A report as text: one line to act on, then the evidence."""

import unicodedata
from collections.abc import Iterator
from typing import Literal

from samestep.app.evidence.bags import Text
from samestep.experiments.audit.telling.report import Finding, PlanReport, Report, Weights

Language = Literal["en", "zh"]

VERDICTS: dict[str, Text] = {
    "same": {"en": "SAME UPDATE", "zh": "更新相同"},
    "different": {"en": "DIFFERENT", "zh": "更新不同"},
    "vacuous": {"en": "VACUOUS", "zh": "无效的审计"},
    "error": {"en": "COULD NOT RUN", "zh": "无法运行"},
}
STAGES: dict[str, Text] = {
    "samples": {"en": "samples", "zh": "样本"},
    "loss": {"en": "loss", "zh": "损失"},
    "replicas": {"en": "replicas", "zh": "各 rank"},
    "gradient": {"en": "gradient", "zh": "梯度"},
    "norm": {"en": "norm", "zh": "范数"},
    "clipped_gradient": {"en": "clipped gradient", "zh": "裁剪后的梯度"},
    "parameters": {"en": "parameters", "zh": "参数"},
    "optimizer_state": {"en": "optimizer state", "zh": "优化器状态"},
    "buffers": {"en": "buffers", "zh": "缓冲量"},
    "notes": {"en": "noted values", "zh": "记录的值"},
}
STATUSES: dict[str, Text] = {
    "same": {"en": "same", "zh": "相同"},
    "different": {"en": "DIFFERENT", "zh": "不同"},
    "follows": {"en": "follows from it", "zh": "由此而来"},
    "not compared": {"en": "not compared", "zh": "未比较"},
}


def printed(report: Report, language: Language, base: str = "") -> str:
    """The whole report. `base`: where the book's addresses begin."""
    return "\n".join(_lines(report, language, base.rstrip("/")))


def _lines(report: Report, language: Language, base: str) -> Iterator[str]:
    yield f"{report.file.name}: {VERDICTS[report.verdict][language]}"
    if report.failure:
        yield str(report.failure)
        return
    for text in report.across:
        yield text[language]
    for plan in report.plans:
        yield ""
        yield from _plan(plan, language, base)


def _plan(plan: PlanReport, language: Language, base: str) -> Iterator[str]:
    cells = " | ".join(", ".join(f"{count:g}" for count in row) for row in plan.counts)
    yield f"plan {plan.name} [{cells}]: {VERDICTS[plan.verdict][language]}{_where(plan)[language]}"
    if plan.finding:
        yield from _finding(plan.finding, language, base)
    for stage in plan.stages:
        amount = "" if stage.max_abs_difference is None else f"{stage.max_abs_difference:.3g}"
        worst = ", ".join(name for name, _ in stage.worst[:3])
        status = STATUSES[stage.status][language]
        name = _padded(STAGES[stage.stage][language], 18)
        yield f"    {name}{amount:>10}  {status}{f'  ({worst})' if worst else ''}"
    for rank in plan.ranks if plan.verdict != "same" else ():
        yield f"    rank {rank.rank}: {' · '.join(rank.events)}"
    for text in (*plan.limits, *plan.notes):
        yield f"  ! {text[language]}"


def _where(plan: PlanReport) -> Text:
    """How many updates agree, or in which one and at which stage the first difference is."""
    if plan.verdict == "same" and plan.updates > 1:
        return {"en": f" ({plan.updates} updates)", "zh": f"（{plan.updates} 次更新）"}
    if plan.verdict != "different":
        return {"en": "", "zh": ""}
    later = plan.update > 1
    where: Text = {
        "en": f" in update {plan.update}" if later else "",
        "zh": f"，在第 {plan.update} 次" if later else "",
    }
    if plan.first_difference is None:
        return where
    first = STAGES[plan.first_difference]
    return {"en": f"{where['en']}, first in: {first['en']}", "zh": f"{where['zh']}，最早出现在：{first['zh']}"}


def _finding(finding: Finding, language: Language, base: str) -> Iterator[str]:
    yield f"  {finding.sentence[language]}"
    for text in finding.evidence:
        yield f"  {text[language]}"
    if finding.weights:
        yield from _weights(finding.weights, language)
    for site in finding.sites:
        yield f"  {site.place}: {site.line}"
    if finding.edit:
        yield f"  {({'en': 'try: ', 'zh': '试试：'})[language]}{finding.edit[language]}"
    slug, _, section = finding.chapter.partition("#")
    yield f"  → {base}/{language}/{slug}#{section}  {base}/{language}/calculators/{finding.calculator}"


def _weights(weights: Weights, language: Language) -> Iterator[str]:
    for name, table in (
        ({"en": "effective weights", "zh": "有效权重"}, weights.observed),
        ({"en": "right weights", "zh": "正确权重"}, weights.expected),
    ):
        rows = " | ".join("".join(f"{_short(weight):<10}" for weight in row).rstrip() for row in table)
        yield f"  {_padded(name[language], 20)}{rows}"


def _short(weight: float) -> str:
    """Three significant digits; what least squares leave of a weight that is 0 is 0."""
    return f"{round(weight, 9) + 0.0:.3g}"


def _padded(text: str, columns: int) -> str:
    """Fill up to so many columns of a terminal: a Chinese character takes two."""
    taken = sum(2 if unicodedata.east_asian_width(character) in "WF" else 1 for character in text)
    return text + " " * (columns - taken)
