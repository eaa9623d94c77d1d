"""What watch found, as frozen values: for people, for machines (`as_json`), and for the page."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from samestep.app.evidence.bags import Text
from samestep.experiments.audit.failure import Failure

SCHEMA = "samestep.watch.1"
Verdict = Literal["same", "different", "vacuous", "not_explained", "error"]
_WORST: tuple[Verdict, ...] = ("error", "different", "not_explained", "vacuous", "same")
CODES = {"same": 0, "different": 1, "vacuous": 1, "not_explained": 1, "error": 2}


@dataclass(frozen=True)
class CellReport:
    """One backward of one rank. None: not known, or not defined (a cell without tokens has no weight).

    weight        mean of ∂(update's gradient)/∂ℓ over its tokens: local weight × reduction; `weight_min`, `weight_max`
    share         weight × N: 1 is the mean over all tokens of the update
    local_weight  what the script's own loss gave each token, without the loss scale
    reduction     the factor with which the backward arrived in what the optimizer stepped with; 0: thrown away
    zero_weight   tokens that weigh nothing;  within: how weights differ inside the cell
    line          of the backward;  loss_line: of the loss, where it was seen
    """

    n: int
    weight: float | None
    weight_min: float | None
    weight_max: float | None
    share: float | None
    local_weight: float | None
    reduction: float | None
    line: str | None
    loss_line: str | None
    zero_weight: int
    within: str
    discarded: bool = False


@dataclass(frozen=True)
class OffReport:
    """A tensor that does not follow the others, with the factor of every backward for it alone."""

    name: str
    factors: tuple[float, ...]
    residual: float


@dataclass(frozen=True)
class FitReport:
    """How the stepped gradient is made of the backwards; see `fitting.Fit`."""

    kind: str
    residual_one: float
    one_factor: float
    tolerance: float
    tensors_off: tuple[OffReport, ...] = ()


@dataclass(frozen=True)
class TermReport:
    """A part of the loss: with tokens, `cells` as for the first one; without, the factor of every backward."""

    name: str
    line: str | None
    cells: tuple[tuple[CellReport, ...], ...] | None
    factors: tuple[tuple[float | None, ...], ...] | None = None


@dataclass(frozen=True)
class UpdateReport:
    """One step of one optimizer.

    mass           what the objective divides by: N, or Σ of class weights
    unseen         parameters that were stepped, or should have been, and that no backward brought a gradient
    not_compared   tensors that were left out of the sketches
    """

    index: int
    N: int
    n_source: str
    optimizer: str
    processes: int
    fit: FitReport | None
    replica_difference: float
    leak_of_last: float | None
    discarded_backwards: int
    verdict: Verdict
    cause: str | None
    factor: str | None
    sentence: Text
    evidence: tuple[Text, ...]
    residual: float | None
    clip: float | None
    scale: float | None
    skipped: bool
    cells: tuple[tuple[CellReport, ...], ...]
    terms: tuple[TermReport, ...] | None
    unseen: tuple[str, ...]
    not_compared: tuple[str, ...]
    line: str | None
    chapter: str
    calculator: str
    ledger: str | None
    mass: float


@dataclass(frozen=True)
class Report:
    """The watch of one run; what it says as a whole is what its worst update says."""

    script: str
    command: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    updates: tuple[UpdateReport, ...] = ()
    failure: Failure | None = None
    refusal: Text | None = None
    empty: Text | None = None
    notes: tuple[Text, ...] = ()
    recipes: tuple[str, ...] = ()
    objective: str = "tokens"

    @property
    def headline(self) -> UpdateReport | None:
        """The update with the worst verdict, the first of its kind."""
        return min(self.updates, key=lambda update: _WORST.index(update.verdict), default=None)

    @property
    def verdict(self) -> Verdict:
        """same, different, vacuous, not_explained or error."""
        if self.failure or self.refusal:
            return "error"
        return self.headline.verdict if self.headline else "vacuous"

    @property
    def sentence(self) -> Text:
        """One line to act on."""
        if self.refusal:
            return self.refusal
        if self.failure:
            return {"en": str(self.failure).partition("\n")[0], "zh": str(self.failure).partition("\n")[0]}
        if self.headline is None:
            return self.empty or {"en": "", "zh": ""}
        return self.headline.sentence

    @property
    def cause(self) -> str | None:
        """The headline's cause."""
        return self.headline.cause if self.headline else None

    @property
    def factor(self) -> str | None:
        """The headline's factor, by name."""
        return self.headline.factor if self.headline else None

    @property
    def code(self) -> int:
        """The exit code: 0 same; 1 another weighting, none, or none that is certain; 2 it could not be watched."""
        return CODES[self.verdict]

    def __str__(self) -> str:
        from samestep.experiments.watch.telling.printing import printed

        return printed(self, "en")


def as_json(report: Report) -> str:
    """The report for machines; numbers that are not finite are null."""
    value: dict[str, Any] = {
        "schema": SCHEMA,
        "verdict": report.verdict,
        "sentence": report.sentence,
        "cause": report.cause,
        "factor": report.factor,
        "script": report.script,
        "command": list(report.command),
        "environment": report.environment,
        "objective": report.objective,
        "updates": [asdict(update) for update in report.updates],
        "notes": list(report.notes),
        "recipes": list(report.recipes),
        "failure": asdict(report.failure) if report.failure else None,
    }
    return json.dumps(_finite(value), ensure_ascii=False, allow_nan=False, indent=1) + "\n"


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if value - value == 0 else None
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_finite(each) for each in value]
    return value
