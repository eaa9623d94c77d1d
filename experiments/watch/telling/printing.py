"""A report as text: one line to act on, then the table of cells."""

from collections.abc import Iterator, Sequence
from typing import Literal

from samestep.app.evidence.bags import Text
from samestep.experiments.watch.telling.causes import NOTES, filled
from samestep.experiments.watch.telling.report import CellReport, Report, UpdateReport

Language = Literal["en", "zh"]
ROWS = 64
"""Cells of an update that are listed; of more, the lightest and the heaviest."""

VERDICTS: dict[str, Text] = {
    "same": {"en": "EVERY TOKEN WEIGHS THE SAME", "zh": "每个 token 权重相同"},
    "different": {"en": "TOKENS DO NOT WEIGH WHAT THEY SHOULD", "zh": "token 的权重不是应有的权重"},
    "vacuous": {"en": "NOTHING TO JUDGE", "zh": "没有可判断的"},
    "not_explained": {"en": "NOT EXPLAINED", "zh": "无法解释"},
    "error": {"en": "COULD NOT BE WATCHED", "zh": "无法观察"},
}
HEADS: dict[str, Sequence[str]] = {
    "en": ("rank", "microstep", "tokens", "local weight", "× reduction", "= weight", "share (1 is right)"),
    "zh": ("rank", "微步", "token 数", "局部权重", "× 归约系数", "= 权重", "份额（1 为正确）"),
}


def printed(report: Report, language: Language) -> str:
    """The whole report."""
    return "\n".join(_lines(report, language))


def _lines(report: Report, language: Language) -> Iterator[str]:
    yield f"{report.script or 'watch'}: {VERDICTS[report.verdict][language]}"
    if report.failure:
        yield str(report.failure)
    elif report.refusal:
        yield report.refusal[language]
    elif report.headline is None:
        yield report.sentence[language]
    for update in report.updates:
        yield ""
        yield from _update(update, language)
    for note in report.notes:
        yield f"  ! {note[language]}"
    for recipe in report.recipes if report.verdict == "different" else ():
        yield {"en": f"  recipe → /en/{recipe}", "zh": f"  配方 → /zh/{recipe}"}[language]


def _update(update: UpdateReport, language: Language) -> Iterator[str]:
    words = {
        "en": f"update {update.index} · {update.optimizer} · {update.processes} ranks · N = {update.N}",
        "zh": f"更新 {update.index} · {update.optimizer} · {update.processes} 个 rank · N = {update.N}",
    }
    yield words[language]
    yield f"  {update.sentence[language]}"
    for text in update.evidence:
        yield f"  {text[language]}"
    yield from (f"  {line}" for line in _reduction(update, language))
    yield from _table(update, language)
    if where := " · ".join(_places(update, language)):
        yield f"  {where}"
    if update.chapter and update.verdict in ("different", "not_explained"):
        slug, _, section = update.chapter.partition("#")
        yield f"  → /{language}/{slug}#{section}  /{language}/calculators/{update.calculator}"
    elif update.ledger and update.verdict == "same":
        yield f"  → /{language}/calculators/{update.ledger}"


def _reduction(update: UpdateReport, language: Language) -> Iterator[str]:
    """How the gradient was made of the backwards, and what came after."""
    if update.fit is None or update.residual is None or update.residual > update.fit.tolerance or _has_none(update):
        return
    if update.fit.kind == "one":
        yield {
            "en": f"Every backward arrives with the factor {update.fit.one_factor:.6g} "
            f"(residual {update.residual:.1e}).",
            "zh": f"每次反向都以系数 {update.fit.one_factor:.6g} 到达（残差 {update.residual:.1e}）。",
        }[language]
    else:
        yield {
            "en": f"Backwards arrive with factors of their own (residual {update.residual:.1e}; "
            f"with one factor {update.fit.residual_one:.1e}).",
            "zh": f"各次反向以各自的系数到达（残差 {update.residual:.1e}；"
            f"用同一系数则为 {update.fit.residual_one:.1e}）。",
        }[language]
    if update.clip is not None and abs(update.clip - 1) > 1e-6:
        yield filled(NOTES["clip"], clip=update.clip)[language]


def _has_none(update: UpdateReport) -> bool:
    """No weight is certain."""
    return all(cell.reduction is None for rank in update.cells for cell in rank)


def _table(update: UpdateReport, language: Language) -> Iterator[str]:
    cells = [(r, k, cell) for r, rank in enumerate(update.cells) for k, cell in enumerate(rank)]
    shown, left = cells, 0
    if len(cells) > ROWS:
        order = sorted(cells, key=lambda each: each[2].share if each[2].share is not None else 1.0)
        shown = sorted((*order[: ROWS // 2], *order[-ROWS // 2 :]), key=lambda each: each[:2])
        left = len(cells) - len(shown)
    widths = (6, 10, 9, 14, 13, 13, 0)
    yield "  " + "".join(_padded(head, width) for head, width in zip(HEADS[language], widths, strict=True)).rstrip()
    for r, k, cell in shown:
        values = (r, k, cell.n, _number(cell.local_weight), _number(cell.reduction), _number(cell.weight), _share(cell))
        yield "  " + "".join(_padded(str(value), width) for value, width in zip(values, widths, strict=True)).rstrip()
    if left:
        yield {"en": f"  … and {left} more", "zh": f"  ……另有 {left} 行"}[language]


def _share(cell: CellReport) -> str:
    if cell.share is None or cell.n == 0:
        return "–"
    text = f"{cell.share:.4f}"
    if cell.within in ("uniform", "class_weights") or cell.weight in (None, 0.0) or cell.weight_min is None:
        return text
    assert cell.weight is not None
    assert cell.weight_max is not None
    scale = cell.share / cell.weight
    return f"{text}  [{cell.weight_min * scale:.4f} … {cell.weight_max * scale:.4f}]"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.6g}"


def _places(update: UpdateReport, language: Language) -> Iterator[str]:
    """Lines of the script: the loss, the backward, the step."""
    cells = [cell for rank in update.cells for cell in rank]
    loss = next((cell.loss_line for cell in cells if cell.loss_line), None)
    backward = next((cell.line for cell in cells if cell.line), None)
    names = {"en": ("loss", "backward", "step"), "zh": ("损失", "反向", "更新")}[language]
    for name, line in zip(names, (loss, backward, update.line), strict=True):
        if line:
            yield f"{name} {line}"


def _padded(text: str, columns: int) -> str:
    """Fill up to so many columns of a terminal: a Chinese character takes two."""
    taken = sum(2 if ord(character) > 0x2E7F else 1 for character in text)
    return text + " " * max(columns - taken, 1) if columns else text
