"""Put a cause into a finding: its sentence, its addresses in the book, numbers and names in prose."""

from collections.abc import Sequence

from samestep.app.evidence.bags import Text
from samestep.experiments.audit.judging.case import Case
from samestep.experiments.audit.telling import causes
from samestep.experiments.audit.telling.report import Finding, Weights

MANY = 6
OWN_NORMS: Text = {"en": "each by its own norm", "zh": "各用自己的范数"}
OWN_VALUES: Text = {"en": "each number of its own gradient", "zh": "逐个裁剪自己梯度的数值"}


def listing(values: Sequence[object]) -> str:
    """A few names in full, of many the first ones."""
    text = ", ".join(str(value) for value in values[:MANY])
    return f"{text}, … ({len(values)})" if len(values) > MANY else text


def number(value: float) -> str:
    """Three significant digits, and never fewer than a whole number has."""
    return f"{value:.0f}" if 1000 <= abs(value) < 1e6 else f"{value:.3g}"


def numbers(values: Sequence[float]) -> str:
    """Three significant digits each; more where that would make different ones look the same."""
    for digits in (3, 4, 5, 6):
        shown = [f"{value:.{digits}g}" for value in values]
        if len(set(shown)) == len({f"{value:.9g}" for value in values}):
            break
    return ", ".join(shown)


def finding(
    case: Case,
    code: str,
    *,
    names: tuple[str, ...] = (),
    evidence: tuple[Text, ...] = (),
    weights: Weights | None = None,
    term: str | None = None,
    only: tuple[str, ...] = (),
    **found: object,
) -> Finding:
    """The finding of that code with its sentence filled in. `names`: expressions of the factor, the simplest first."""
    cause = causes.CAUSES[code]
    return Finding(
        code,
        causes.say(code, **found),
        factor=names[0] if names else None,
        factors=names,
        evidence=evidence,
        weights=weights,
        term=term,
        only=only,
        chapter=cause.chapter,
        calculator=cause.calculator.format(**_addresses(case), **found),
    )


def unknown(case: Case, english: str, chinese: str, *, evidence: tuple[Text, ...] = ()) -> Finding:
    """A difference without a name."""
    return finding(case, "unknown", evidence=evidence, what={"en": english, "zh": chinese})


def _addresses(case: Case) -> dict[str, object]:
    reference = case.reference.vectors.get("gradient")
    return {
        "P": case.processes,
        "K": case.microbatches,
        "counts": ";".join(",".join(f"{count:g}" for count in row) for row in case.counts),
        "gradients": ";".join(",".join(_first_cell_only(r, len(row))) for r, row in enumerate(case.counts)),
        "reference_norm": f"{reference.norm:.6g}" if reference else "",
        "observed_norm": f"{case.gradient.norm:.6g}" if case.gradient else "",
    }


def _first_cell_only(rank: int, microbatches: int) -> list[str]:
    """Gradients of a rank: 1 in the very first cell, 0 elsewhere, so that a ledger's sum is that cell's weight."""
    return ["1" if (rank, k) == (0, 0) else "0" for k in range(microbatches)]
