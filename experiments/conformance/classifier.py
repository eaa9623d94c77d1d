"""Which rule gives the measured coefficients, and which other rules would give the same ones in that scenario.

A *candidate* is a rule with a factor that has a name, `microbatch_equal*1/K` (see `rules`). One scenario seldom tells
all candidates apart: with one micro-batch a rank, ranks and micro-batches are the same, and K is 1. So all that fit are
listed, and what a setting does is what fits in all of its scenarios (`Resolution`).
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from samestep.experiments.conformance.rules import PER_UPDATE, RULES, SCALES, asked, candidates, rule, weights
from samestep.experiments.conformance.scenarios import SCENARIOS, Scenario

Tokens = Sequence[Sequence[Sequence[float]]]
"""Coefficients [r][k][i] of the tokens of a cell, one sequence after the other."""
Cells = Sequence[Sequence[Sequence[float]]]
"""Of a token in each sequence [r][k][s]."""


def coefficients(candidate: str, scenario: Scenario, positions: int | None = None) -> list[list[list[float]]]:
    """What a candidate (`rule` or `rule*scale`) gives a token of each sequence; `dropped` and `leaking` give 0."""
    found = weights(candidate, scenario, positions)
    return [[[float(value) for value in cell] for cell in rank] for rank in found]


def of_cells(cells: Sequence[Sequence[float]], scenario: Scenario) -> list[list[list[float]]]:
    """One coefficient a cell, for each of its sequences."""
    return [
        [[value] * len(lengths) for value, lengths in zip(line, rank, strict=True)]
        for line, rank in zip(cells, scenario.sequences, strict=True)
    ]


@dataclass(frozen=True)
class Finding:
    """What one scenario tells. `candidates`: all that fit, with every name of every scale. `nearest`: where none does,
    the rules that the coefficients are proportional to, with the factor as a number.
    """

    verdict: str
    candidates: frozenset[str] = frozenset()
    nearest: Mapping[str, float] | None = None


def by_sequence(tokens: Tokens, scenario: Scenario) -> list[list[list[list[float]]]]:
    """The coefficients of each sequence [r][k][s][i]."""
    found: list[list[list[list[float]]]] = []
    for rank, lines in zip(tokens, scenario.sequences, strict=True):
        found.append([])
        for cell, lengths in zip(rank, lines, strict=True):
            values = iter(cell)
            found[-1].append([[next(values) for _ in range(n)] for n in lengths])
    return found


def means(values: Sequence[Sequence[Sequence[float]]]) -> list[list[float | None]]:
    """The mean of each innermost list, None for one without tokens."""
    return [[sum(cell) / len(cell) if cell else None for cell in rank] for rank in values]


def spread(tokens: Tokens, scenario: Scenario) -> float:
    """Largest difference between two tokens of one sequence."""
    each = (values for rank in by_sequence(tokens, scenario) for cell in rank for values in cell if values)
    return max((max(values) - min(values) for values in each), default=0.0)


def distance(tokens: Tokens, wanted: Cells, scenario: Scenario) -> float | None:
    """Largest difference of any token from what its sequence should give; None when something is not finite."""
    away = [abs(value - target) for value, target in _beside(tokens, wanted, scenario)]
    return max(away, default=0.0) if all(map(math.isfinite, away)) else None


def _beside(tokens: Tokens, wanted: Cells, scenario: Scenario) -> Iterator[tuple[float, float]]:
    """Every token's coefficient, and what its sequence should give."""
    for rank, line in zip(by_sequence(tokens, scenario), wanted, strict=True):
        for cell, targets in zip(rank, line, strict=True):
            for values, target in zip(cell, targets, strict=True):
                yield from ((value, target) for value in values)


def classify(
    tokens: Tokens,
    scenario: Scenario,
    tolerance: float,
    later: Tokens | None = None,
    positions: int | None = None,
) -> Finding:
    """Everything that gives these coefficients in this scenario, up to `tolerance`.

    `positions`: how many a sequence has with its padding, where that is known.
    """
    flat = [value for rank in tokens for cell in rank for value in cell]
    if not all(map(math.isfinite, flat)):
        return Finding("undefined", frozenset({"undefined"}))
    if max(map(abs, flat), default=0.0) <= tolerance:
        leaks = later is not None and any(abs(c) > tolerance for rank in later for cell in rank for c in cell)
        name = "leaking" if leaks else "dropped"
        return Finding(name, frozenset({name}))
    fitting = frozenset(
        candidate
        for candidate in candidates(scenario, positions)
        if (away := distance(tokens, coefficients(candidate, scenario, positions), scenario)) is not None
        and away <= tolerance
    )
    if fitting:
        return Finding(said(fitting, scenario), fitting)
    return Finding("other", nearest=_proportional(tokens, scenario, tolerance, positions) or None)


def _proportional(tokens: Tokens, scenario: Scenario, tolerance: float, positions: int | None) -> dict[str, float]:
    """The rules that the coefficients are a multiple of, with a factor that has no name here."""
    found = {}
    for name in asked(scenario, positions):
        wanted = [[list(map(float, cell)) for cell in rank] for rank in rule(name, scenario, positions)]
        pairs = list(_beside(tokens, wanted, scenario))
        factor = sum(a * b for a, b in pairs) / sum(b * b for _, b in pairs)
        if all(abs(a - factor * b) <= tolerance for a, b in pairs):
            found[name] = factor
    return found


def said(given: Iterable[str], scenario: Scenario) -> str:
    """Candidates as a verdict names them: unscaled ones alone if there are any, each factor by its shortest name."""
    listed = listing(given, scenario)
    return " | ".join([each for each in listed if "*" not in each] or listed)


def listing(given: Iterable[str], scenario: Scenario) -> list[str]:
    """In the order of the rules, each factor by its shortest name (with K = 1, `P*K` is P), those without one first."""
    named: dict[tuple[str, str], str] = {}
    left = set(given)
    for candidate in (name if scale == "1" else f"{name}*{scale}" for name in (*RULES, PER_UPDATE) for scale in SCALES):
        if candidate in left:
            left.remove(candidate)
            name, _, scale = candidate.partition("*")
            shortest = _shortest(scale or "1", scenario)
            named.setdefault((name, shortest), name if shortest == "1" else f"{name}*{shortest}")
    return sorted(named.values(), key=lambda each: "*" in each) + sorted(left)


def _shortest(scale: str, scenario: Scenario) -> str:
    """A factor's name without the symbols that are 1 in this scenario."""
    if scenario.accumulation == 1:
        scale = _WITHOUT_K.get(scale, scale)
    return _WITHOUT_P.get(scale, scale) if len(scenario.counts) == 1 else scale


_WITHOUT_K = {"K": "1", "P*K": "P", "1/K": "1", "1/(P*K)": "1/P", "N/(P*K)": "N/P"}
_WITHOUT_P = {"P": "1", "P*P": "1", "P*K": "K", "1/P": "1", "1/(P*K)": "1/K", "N/P": "N"}


@dataclass(frozen=True)
class Resolution:
    """What a setting does, from all of its scenarios: `full` fits every complete window, `tail` the last one."""

    full: frozenset[str]
    tail: frozenset[str]

    def verdict(self, finding: Finding, scenario: Scenario) -> str:
        """The finding of one scenario, in the light of the others."""
        light = self.tail if scenario.tail else self.full
        return said(finding.candidates & light or finding.candidates, scenario) or finding.verdict


def resolve(findings: Mapping[str, Finding]) -> Resolution:
    """Intersect the candidates of complete windows, then see what of the tail's agrees with them.

    The tail may carry another factor. It is looked for at the same rule first without a change, then with a power of
    K: complete windows have shown what P does, and only the missing micro-batches are new.
    """
    full: frozenset[str] | None = None
    tail: frozenset[str] = frozenset()
    for scenario, finding in findings.items():
        if SCENARIOS[scenario].tail:
            tail = finding.candidates
        elif finding.candidates:
            full = finding.candidates if full is None else full & finding.candidates
    full = full or frozenset()
    if same := tail & full:
        return Resolution(full, same)
    rules = {each.partition("*")[0] for each in full if "*" not in each}
    changed = frozenset(f"{name}*{scale}" for name in rules for scale in ("K", "1/K")) & tail
    return Resolution(full, changed or tail)
