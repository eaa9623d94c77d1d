"""Compare every token's weight with what the objective asks of it, and name the rule that gives the weights.

`share` of a token: its weight ÷ the weight it should have. Within a cell tokens may differ; where they do not, cells
are compared with the tables of `patterns`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from samestep.app.evidence.bags import Text
from samestep.experiments.audit.telling.factors import NO_USUAL, USUAL
from samestep.experiments.watch.joined import weighing
from samestep.experiments.watch.joined.evidence import Evidence
from samestep.experiments.watch.joined.weighing import Tokens
from samestep.experiments.watch.records import Array
from samestep.experiments.watch.telling import causes, patterns
from samestep.experiments.watch.telling.causes import NOTES, filled
from samestep.experiments.watch.telling.patterns import Pattern, Table
from samestep.experiments.watch.telling.saying import (
    NOTHING,
    Place,
    Said,
    cells_named,
    found,
    mass,
    unexplained,
    unknown,
)

BY_HAND: Text = {
    "en": "the gradient was scaled by something that is not seen (a clip by hand, a fixed divisor)",
    "zh": "梯度被看不到的东西缩放过（自己写的裁剪，或固定的除数）",
}
TAIL: Text = {
    "en": "the window is a partial one, and its losses are divided by the number of a full one",
    "zh": "这是不满的窗口，损失却仍除以完整窗口的微步数",
}
UNITS: dict[str, Text] = {"sequences": {"en": "sequence", "zh": "序列"}, "samples": {"en": "sample", "zh": "样本"}}
EVEN = {"uniform", "class_weights", "empty"}


def compared(evidence: Evidence) -> Said:
    """The verdict by weights alone."""
    cells = [(tokens, evidence.factors[r][k]) for r, rank in enumerate(evidence.term) for k, tokens in enumerate(rank)]
    within = {weighing.rule_within(tokens) for tokens, _ in cells}
    weights = np.concatenate([tokens.local * factor for tokens, factor in cells])
    if "signed" in within:
        return unexplained("signed", least=float(weights.min()), most=float(weights.max()))
    if evidence.objective != "tokens":
        return _by_units(evidence, cells)
    if within <= EVEN:
        return _by_cells(evidence)
    if within <= EVEN | {"sequence_mean"} and (units := _units(cells, "sequences")) is not None:
        factor = float(np.median(units.shares))
        if factor and float(np.abs(units.shares / factor - 1).max()) <= evidence.tolerance:
            said = found("sequence_mean")
            if abs(factor - 1) > evidence.tolerance:
                said.evidence.append(_on_top(_named(evidence, "rows", factor)))
            return said
    fair = np.concatenate([np.where(tokens.fair > 0, tokens.fair, 1.0) for tokens, _ in cells])
    shares = weights / fair * mass(evidence)
    least, most = float(shares.min()), float(shares.max())
    return unknown(
        f"Tokens weigh differently within a microbatch, from {least:.4g} to {most:.4g} times their share, by a rule "
        "that watch has no name for.",
        f"同一个微批内的 token 权重就不同，是应得份额的 {least:.4g} 到 {most:.4g} 倍，watch 没有这条规则的名字。",
    )


def _by_cells(evidence: Evidence) -> Said:
    """Every token of a cell weighs alike: cells are compared."""
    term = evidence.term
    masses = [[tokens.mass for tokens in rank] for rank in term]
    weights = [
        [float(tokens.local.sum()) / tokens.mass * evidence.factors[r][k] if tokens.mass else 0.0
         for k, tokens in enumerate(rank)]
        for r, rank in enumerate(term)
    ]  # fmt: skip
    places = [(r, k) for r, rank in enumerate(term) for k, tokens in enumerate(rank) if tokens.mass]
    shares = {(r, k): weights[r][k] * mass(evidence) for r, k in places}
    if max(abs(share - 1) for share in shares.values()) <= evidence.tolerance:
        return Said("same", filled(causes.SAME, n=sum(tokens.n for rank in term for tokens in rank)))
    largest = max(map(abs, shares.values()))
    if lost := [place for place in places if abs(shares[place]) <= NOTHING * largest]:
        return _dropped(evidence, weights, masses, lost)
    pattern = patterns.find(weights, masses, evidence.tolerance)
    if pattern is not None and pattern.code == "global":
        return _scaled(_named(evidence, pattern.code, pattern.factor))
    if pattern is None:
        said = unknown(
            "Tokens weigh differently, by a rule that watch has no name for.",
            "各 token 权重不同，watch 没有这条规则的名字。",
        )
    elif pattern.code == "reduced_again":
        said = Said("different", causes.OWN["reduced_again"].sentence, "unknown")
    else:
        said = found(pattern.code)
        if abs(pattern.factor - 1) > evidence.tolerance:
            named = _named(evidence, pattern.code, pattern.factor)
            said.factor, said.value = named.name, named.factor
            said.evidence.append(_on_top(named))
    said.evidence.insert(0, _extremes(term, shares))
    return said


def _dropped(evidence: Evidence, weights: Table, masses: Table, lost: Sequence[Place]) -> Said:
    """Cells without any weight, and what rule the rest follows."""
    said = found("dropped_microbatch", which=cells_named(lost))
    rest = [[0.0 if (r, k) in lost else m for k, m in enumerate(rank)] for r, rank in enumerate(masses)]
    pattern = patterns.find(weights, rest, evidence.tolerance) if any(map(any, rest)) else None
    if pattern is not None and pattern.code in ("replica_equal", "microbatch_equal"):
        said.evidence.append(causes.cause(pattern.code).sentence)
    return said


def _scaled(pattern: Pattern) -> Said:
    """All tokens weigh alike, but not 1/N. Where several expressions have that value, all are said."""
    usual = [pattern.usual or USUAL.get(name, NO_USUAL) for name in pattern.names] or [BY_HAND]
    several: Text = {
        "en": ", or ".join(dict.fromkeys(each["en"] for each in usual)),
        "zh": "；或者".join(dict.fromkeys(each["zh"] for each in usual)),
    }
    said = found("scale", factor=" = ".join(pattern.names) or pattern.name, usual=several)
    said.factor, said.value = pattern.name, pattern.factor
    return said


def _named(evidence: Evidence, code: str, factor: float) -> Pattern:
    """The factor with its names; a partial window is explained by what it lacks before anything else."""
    microsteps, full = evidence.microsteps, evidence.full
    if microsteps < full and abs(factor / (microsteps / full) - 1) <= evidence.tolerance:
        return Pattern(code, factor, (f"{microsteps}/K",), TAIL)
    ranks, total = len(evidence.term), mass(evidence)
    return patterns.named(code, factor, ranks, full, total, evidence.tolerance, evidence.scale)


def _on_top(pattern: Pattern) -> Text:
    usual = pattern.usual or (USUAL.get(pattern.names[0], NO_USUAL) if pattern.names else BY_HAND)
    return filled(NOTES["on_top"], factor=" = ".join(pattern.names) or pattern.name, usual=usual)


def _extremes(term: Sequence[Sequence[Tokens]], shares: dict[Place, float]) -> Text:
    """The heaviest and the lightest tokens."""
    most, least = max(shares, key=lambda place: shares[place]), min(shares, key=lambda place: shares[place])
    return filled(
        NOTES["extremes"], rank=most[0], k=most[1], n=term[most[0]][most[1]].n, most=shares[most],
        rank_least=least[0], k_least=least[1], n_least=term[least[0]][least[1]].n, least=shares[least],
    )  # fmt: skip


@dataclass(frozen=True)
class _Units:
    """Shares of sequences or samples: total weight × how many there are. `even`: within each, tokens weigh alike."""

    shares: Array
    even: bool


def _units(cells: Sequence[tuple[Tokens, float]], objective: str) -> _Units | None:
    """None where it is not known which tokens belong together. A sample of a loss without a second axis is a token."""
    totals: list[float] = []
    even = True
    for tokens, factor in cells:
        if tokens.n == 0:
            continue
        rows = tokens.rows if tokens.rows is not None or objective != "samples" else np.arange(tokens.n)
        if rows is None:
            return None
        _, index = np.unique(rows, return_inverse=True)
        weights = tokens.local * factor
        total = np.bincount(index, weights)
        mean = total / np.bincount(index, tokens.fair)
        even = even and float(np.abs(weights - tokens.fair * mean[index]).max()) <= 2e-5 * float(np.abs(weights).max())
        totals += total.tolist()
    return _Units(np.array(totals) * len(totals), even)


def _by_units(evidence: Evidence, cells: Sequence[tuple[Tokens, float]]) -> Said:
    """Every sequence, or sample, should weigh the same."""
    units, unit = _units(cells, evidence.objective), UNITS[evidence.objective]
    if units is None:
        return unexplained("no_rows", unit=unit, objective=evidence.objective)
    if float(np.abs(units.shares - 1).max()) <= evidence.tolerance and units.even:
        return Said("same", filled(causes.OBJECTIVES[evidence.objective], units=len(units.shares)))
    least, most = float(units.shares.min()), float(units.shares.max())
    if units.even and weighing.spread(units.shares) <= evidence.tolerance:
        return _scaled(_named(evidence, "rows", float(np.median(units.shares))))
    return unknown(
        f"One {unit['en']} weighs {least:.4g} times its share, another one {most:.4g} times.",
        f"各{unit['zh']}权重不同，是应得份额的 {least:.4g} 到 {most:.4g} 倍。",
    )
