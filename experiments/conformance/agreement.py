"""Do the two readings of a run agree: what its parameters became, and what watch saw pass?

Coefficients are compared cell by cell, by their least and greatest. Where a loss gives its tokens weights of both signs
(advantages), what is solved for has none, and the greatest magnitude is compared. Watch says itself why it has nothing
to compare: pairs are no tokens, and pipelines it refuses before any number.
"""

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from samestep.app.evidence.bags import Control, Json
from samestep.experiments.conformance.frameworks import Framework
from samestep.experiments.conformance.pairs import Report
from samestep.experiments.conformance.scenarios import SCENARIOS, Scenario
from samestep.experiments.conformance.watched import WATCH, Task, place
from samestep.experiments.results import control

AGREES = 1e-4
"""Greatest difference of a coefficient between the two readings; of a row in low precision, its own tolerance."""
OTHER_UNITS = "watch weighs tokens, and counts another number of them than these rows have coefficients"
NO_COEFFICIENTS = "it compares coefficients of tokens, and no row has any"

Tokens = Sequence[Sequence[Sequence[float]]]


def judged(framework: Framework, version: str, report: Report, seen: Path) -> Control | str:
    """Every coefficient that was solved for is what watch saw pass in the folder `seen`; or why nothing is compared."""
    found = {
        task: compare(seen / framework.id, task, ranks[0]["tokens"])
        for task, ranks in report.measured.items()
        if ranks[0] is not None and ranks[0]["kind"] == "coefficients"
    }
    known = {task: away for task, away in found.items() if not isinstance(away, str)}
    reasons: dict[str, Json] = {"-".join(task): why for task, why in found.items() if isinstance(why, str)}
    if not known:
        nothing = NO_COEFFICIENTS if report.measured else "nothing was measured"
        return f"--reader watch: {'; '.join(dict.fromkeys(map(str, reasons.values()))) or nothing}"
    name = f"{framework.name} {version}"
    return control(
        f"watched-{framework.id}-{version}".replace(".", "-"),
        {"zh": f"watch 读到的 {name} 的系数相同", "en": f"watch reads the same coefficients of {name}"},
        all(away <= max(AGREES, report.settings[setting]["tolerance"]) for (setting, _), away in known.items()),
        compared=len(known),
        not_compared=reasons,
        largest=max(known.values()),
    )


def compare(folder: Path, task: Task, tokens: Tokens) -> float | str:
    """Largest difference of a token's coefficient from what watch read, or why it gives none.

    tokens   [rank][microbatch][token] by the usual reading

    A window that the framework never stepped with has coefficients 0.
    """
    report = import_module(f"{WATCH}.joined.assembling").assemble(place(folder, task), "tokens")
    scenario: Scenario = SCENARIOS[task[1]]
    usual = [cell for rank in tokens for cell in rank if cell]
    if report.verdict == "error":
        return str(report.sentence["en"])
    if len(report.updates) <= bool(scenario.before):
        return max((abs(value) for cell in usual for value in cell), default=0.0)
    update = report.updates[bool(scenario.before)]
    seen: list[Any] = [cell for rank in update.cells for cell in rank if cell.n and not cell.discarded]
    if not seen or any(cell.weight is None for cell in seen):
        return str(update.sentence["en"])
    if [cell.n for cell in seen] != [len(cell) for cell in usual]:
        return OTHER_UNITS
    pairs = zip(seen, usual, strict=True)
    if any(cell.weight_min < 0 < cell.weight_max for cell in seen):
        away = [abs(max(-cell.weight_min, cell.weight_max) - max(map(abs, one))) for cell, one in pairs]
    else:
        away = [
            difference
            for cell, one in pairs
            for difference in (abs(cell.weight_min - min(one)), abs(cell.weight_max - max(one)))
        ]
    return float(max(away, default=0.0))
