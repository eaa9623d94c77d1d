"""What a verdict is made of: its sentence, its cause, and how cells are called."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from samestep.app.evidence.bags import Text
from samestep.experiments.watch.joined.evidence import Evidence
from samestep.experiments.watch.telling import causes
from samestep.experiments.watch.telling.causes import filled
from samestep.experiments.watch.telling.report import Verdict

Place = tuple[int, int]
NOTHING = 1e-6
"""A factor or a share, relative to the largest one, below which there is none."""


@dataclass
class Said:
    """The verdict, its cause, the factor by name and as a number, the sentence, and what supports or limits it."""

    verdict: Verdict
    sentence: Text
    cause: str | None = None
    factor: str | None = None
    value: float | None = None
    evidence: list[Text] = field(default_factory=list)


def mass(evidence: Evidence) -> float:
    """What the objective divides by: N, or Σ of class weights."""
    return float(sum(tokens.mass for rank in evidence.term for tokens in rank))


def found(code: str, sentence: Text | None = None, **values: object) -> Said:
    """Another weighting, with its cause."""
    return Said("different", sentence or filled(causes.cause(code).sentence, **values), code)


def unknown(english: str, chinese: str) -> Said:
    """Another weighting, without a name."""
    return Said("different", {"en": english, "zh": chinese}, "unknown")


def unexplained(code: str, **values: object) -> Said:
    """No weights, and why."""
    return Said("not_explained", filled(causes.REASONS[code], **values))


def cells_named(places: Sequence[Place]) -> Text:
    """rank 0 microstep 1, rank 1 microstep 0, …"""
    shown, more = places[:6], f", … ({len(places)})" if len(places) > 6 else ""
    return {
        "en": ", ".join(f"rank {r} microstep {k}" for r, k in shown) + more,
        "zh": "、".join(f"rank {r} 微步 {k}" for r, k in shown) + more,
    }
