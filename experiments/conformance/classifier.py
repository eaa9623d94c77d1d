"""Which rule gives the measured coefficients, and which other rules would give the same ones in that scenario.

With n[r][k] valid labels, N of them in all, P processes and K̂ micro-batches that are there (K as configured):

    global_token_mean    every token 1/N
    replica_equal        1 / (P · Σ_k n[r][k]): the mean of every rank's token mean
    microbatch_equal     1 / (P · K̂ · n[r][k]): the mean of every micro-batch's token mean

An empty rank or micro-batch keeps its place in P and K̂. Each rule may be scaled by a factor that has a name (`SCALES`).
A *candidate* is a rule with a scale, `microbatch_equal*1/K`. One scenario seldom tells all candidates apart: with one
micro-batch a rank, the second and third rule are the same, and the fourth scale is the second. So all that fit are
listed, and what a setting does is what fits in all of its scenarios (`Resolution`).
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from samestep.experiments.conformance.scenarios import SCENARIOS, Scenario

Tokens = Sequence[Sequence[Sequence[float]]]
RULES = ("global_token_mean", "replica_equal", "microbatch_equal")


@dataclass(frozen=True)
class Sizes:
    """P, K as configured, N."""

    processes: int
    accumulation: int
    total: int


SCALES: dict[str, Callable[[Sizes], Fraction]] = {
    "1": lambda size: Fraction(1),
    "P": lambda size: Fraction(size.processes),
    "K": lambda size: Fraction(size.accumulation),
    "P*K": lambda size: Fraction(size.processes * size.accumulation),
    "1/P": lambda size: Fraction(1, size.processes),
    "1/K": lambda size: Fraction(1, size.accumulation),
    "1/(P*K)": lambda size: Fraction(1, size.processes * size.accumulation),
    "N": lambda size: Fraction(size.total),
    "N/P": lambda size: Fraction(size.total, size.processes),
    "N/(P*K)": lambda size: Fraction(size.total, size.processes * size.accumulation),
}


def sizes(scenario: Scenario) -> Sizes:
    return Sizes(len(scenario.counts), scenario.accumulation, scenario.total)


def rule(name: str, scenario: Scenario) -> list[list[Fraction]]:
    """The coefficient of a token in each cell [r][k]; 0 in an empty one, which has no token."""
    counts, processes = scenario.counts, len(scenario.counts)
    divisors = {
        "global_token_mean": [[scenario.total for _ in rank] for rank in counts],
        "replica_equal": [[processes * sum(rank) for _ in rank] for rank in counts],
        "microbatch_equal": [[processes * len(rank) * n for n in rank] for rank in counts],
    }[name]
    return [
        [Fraction(1, divisor) if n else Fraction(0) for n, divisor in zip(rank, line, strict=True)]
        for rank, line in zip(counts, divisors, strict=True)
    ]


def coefficients(candidate: str, scenario: Scenario) -> list[list[float]]:
    """What a candidate (`rule` or `rule*scale`) gives a token of each cell; `dropped` and `leaking` give 0."""
    if candidate in ("dropped", "leaking"):
        return [[0.0 for _ in rank] for rank in scenario.counts]
    name, _, scale = candidate.partition("*")
    factor = SCALES[scale or "1"](sizes(scenario))
    return [[float(factor * value) for value in rank] for rank in rule(name, scenario)]


@dataclass(frozen=True)
class Finding:
    """What one scenario tells. `candidates`: all that fit, with every name of every scale. `nearest`: where none does,
    the rules that the coefficients are proportional to, with the factor as a number.
    """

    verdict: str
    candidates: frozenset[str] = frozenset()
    nearest: Mapping[str, float] | None = None


def cell_means(tokens: Tokens) -> list[list[float | None]]:
    """[r][k], None for a cell without tokens."""
    return [[sum(cell) / len(cell) if cell else None for cell in rank] for rank in tokens]


def spread(tokens: Tokens) -> float:
    """Largest difference between two tokens of one cell."""
    return max((max(cell) - min(cell) for rank in tokens for cell in rank if cell), default=0.0)


def distance(tokens: Tokens, wanted: Sequence[Sequence[float]]) -> float | None:
    """Largest difference of any token from what its cell should give; None when something is not finite."""
    away = [
        abs(value - target)
        for rank, line in zip(tokens, wanted, strict=True)
        for cell, target in zip(rank, line, strict=True)
        for value in cell
    ]
    return max(away, default=0.0) if all(map(math.isfinite, away)) else None


def classify(tokens: Tokens, scenario: Scenario, tolerance: float, later: Tokens | None = None) -> Finding:
    """Everything that gives these coefficients in this scenario, up to `tolerance`."""
    flat = [value for rank in tokens for cell in rank for value in cell]
    if not all(map(math.isfinite, flat)):
        return Finding("undefined", frozenset({"undefined"}))
    if max(map(abs, flat), default=0.0) <= tolerance:
        leaks = later is not None and any(abs(c) > tolerance for rank in later for cell in rank for c in cell)
        name = "leaking" if leaks else "dropped"
        return Finding(name, frozenset({name}))
    fitting = frozenset(
        candidate
        for candidate in all_candidates()
        if (away := distance(tokens, coefficients(candidate, scenario))) is not None and away <= tolerance
    )
    if fitting:
        return Finding(said(fitting, scenario), fitting)
    return Finding("other", nearest=_proportional(tokens, scenario, tolerance) or None)


def all_candidates() -> list[str]:
    """Rules with scales; a factor N makes sense for the sum over all tokens only."""
    pairs = [(name, scale) for name in RULES for scale in SCALES if name == RULES[0] or not scale.startswith("N")]
    return [name if scale == "1" else f"{name}*{scale}" for name, scale in pairs]


def _proportional(tokens: Tokens, scenario: Scenario, tolerance: float) -> dict[str, float]:
    """The rules that the coefficients are a multiple of, with a factor that has no name here."""
    found = {}
    flat = [value for rank in tokens for cell in rank for value in cell]
    for name in RULES:
        wanted = rule(name, scenario)
        reference = [
            float(target)
            for rank, line in zip(tokens, wanted, strict=True)
            for cell, target in zip(rank, line, strict=True)
            for _ in cell
        ]
        factor = sum(a * b for a, b in zip(flat, reference, strict=True)) / sum(b * b for b in reference)
        if all(abs(a - factor * b) <= tolerance for a, b in zip(flat, reference, strict=True)):
            found[name] = factor
    return found


def said(candidates: Iterable[str], scenario: Scenario) -> str:
    """Candidates as a verdict names them: unscaled ones alone if there are any, each factor by its shortest name."""
    listed = listing(candidates, scenario)
    return " | ".join([each for each in listed if "*" not in each] or listed)


def listing(candidates: Iterable[str], scenario: Scenario) -> list[str]:
    """In the order of the rules, each factor by its shortest name (with K = 1, `P*K` is P), those without one first."""
    named: dict[tuple[str, str], str] = {}
    given, size = set(candidates), sizes(scenario)
    for candidate in all_candidates():
        if candidate in given:
            name, _, scale = candidate.partition("*")
            shortest = scale or "1"
            if size.accumulation == 1:
                shortest = _WITHOUT_K.get(shortest, shortest)
            named.setdefault((name, shortest), name if shortest == "1" else f"{name}*{shortest}")
    other = sorted(given - set(all_candidates()))
    return sorted(named.values(), key=lambda each: "*" in each) + other


_WITHOUT_K = {"K": "1", "P*K": "P", "1/K": "1", "1/(P*K)": "1/P", "N/(P*K)": "N/P"}


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
