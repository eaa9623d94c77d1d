"""What a token gets by each rule, and the factors that a rule may carry.

With n[r][k] valid labels, N of them in all, P processes and K̂ micro-batches that are there (K as configured); S
sequences of L positions, sequence s having n[s] labels:

    global_token_mean    every token 1/N
    replica_equal        1 / (P · Σ_k n[r][k]): the mean of every rank's token mean
    microbatch_equal     1 / (P · K̂ · n[r][k]): the mean of every micro-batch's token mean
    micro_step_equal     1 / (K̂ · Σ_r n[r][k]): the mean, over micro-steps, of all ranks' token mean in each
    sequence_mean        1 / (S · n[s]): the mean of every sequence's token mean
    sequence_sum         1 / S
    constant             1 / (S · L): every position counts, whether it has a label or not
    generation_mean      (micro-batches sampled together ÷ K) / (labels sampled together)

An empty rank, micro-batch or sequence keeps its place in P, K̂ and S. A rule is asked for only where it says something
of its own: with one process it is the only replica, with one micro-batch there is no micro-step beside the window,
with one sequence a micro-batch its sequences are the micro-batches, and L and generations have to be known.
"""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from samestep.experiments.conformance.scenarios import Scenario

Weights = list[list[list[Fraction]]]
"""Of a token in each sequence [r][k][s]; 0 where it has none."""


@dataclass(frozen=True)
class Sizes:
    """P, K as configured, N, S and, where it is known, L."""

    processes: int
    accumulation: int
    total: int
    sequences: int
    positions: int | None


SCALES: dict[str, Callable[[Sizes], Fraction]] = {
    "1": lambda size: Fraction(1),
    "P": lambda size: Fraction(size.processes),
    "K": lambda size: Fraction(size.accumulation),
    "P*K": lambda size: Fraction(size.processes * size.accumulation),
    "P*P": lambda size: Fraction(size.processes**2),
    "1/P": lambda size: Fraction(1, size.processes),
    "1/K": lambda size: Fraction(1, size.accumulation),
    "1/(P*K)": lambda size: Fraction(1, size.processes * size.accumulation),
    "0.2": lambda size: Fraction(1, 5),
    "N": lambda size: Fraction(size.total),
    "N/P": lambda size: Fraction(size.total, size.processes),
    "N/(P*K)": lambda size: Fraction(size.total, size.processes * size.accumulation),
    "1/positions": lambda size: Fraction(1, size.positions or 1),
}
_OF_ONE_RULE = {
    "N": "global_token_mean",
    "N/P": "global_token_mean",
    "N/(P*K)": "global_token_mean",
    "1/positions": "sequence_sum",
}
"""Factors that make sense for one rule only: N turns a mean into a sum, L a sum into a mean over positions."""

RULES = (
    "global_token_mean",
    "replica_equal",
    "microbatch_equal",
    "micro_step_equal",
    "sequence_mean",
    "sequence_sum",
    "constant",
    "generation_mean",
)
PER_UPDATE = "per_update"
"""The rule of counters (`counters`), which carries the same factors."""


def sizes(scenario: Scenario, positions: int | None = None) -> Sizes:
    sequences = sum(len(cell) for rank in scenario.sequences for cell in rank)
    return Sizes(len(scenario.counts), scenario.accumulation, scenario.total, sequences, positions)


def asked(scenario: Scenario, positions: int | None = None) -> list[str]:
    """The rules that this scenario can tell from others by more than their name."""
    several = len(scenario.counts) > 1
    there = {
        "replica_equal": several,
        "micro_step_equal": several and len(scenario.counts[0]) > 1,
        "sequence_mean": bool(scenario.lengths),
        "sequence_sum": bool(scenario.lengths),
        "constant": positions is not None,
        "generation_mean": scenario.generation > 0,
    }
    return [name for name in RULES if there.get(name, True)]


def candidates(scenario: Scenario, positions: int | None = None) -> list[str]:
    """Every rule that is asked for with every factor, `rule` or `rule*scale`."""
    pairs = [(name, scale) for name in asked(scenario, positions) for scale in SCALES]
    known = [
        (name, scale)
        for name, scale in pairs
        if _OF_ONE_RULE.get(scale, name) == name and (scale != "1/positions" or positions is not None)
    ]
    return [name if scale == "1" else f"{name}*{scale}" for name, scale in known]


def rule(name: str, scenario: Scenario, positions: int | None = None) -> Weights:
    """The coefficient of a token in each sequence [r][k][s]; 0 in an empty one, which has no token."""
    return [
        [
            [_weight(name, scenario, r, k, n, positions) if n else Fraction(0) for n in cell]
            for k, cell in enumerate(rank)
        ]
        for r, rank in enumerate(scenario.sequences)
    ]


def _weight(name: str, scenario: Scenario, r: int, k: int, length: int, positions: int | None) -> Fraction:
    counts, size = scenario.counts, sizes(scenario, positions)
    processes, microbatches = size.processes, len(counts[r])
    if name == "generation_mean":
        return Fraction(scenario.generation, size.accumulation * scenario.generation_total(k))
    divisors: dict[str, Callable[[], int]] = {
        "global_token_mean": lambda: size.total,
        "replica_equal": lambda: processes * sum(counts[r]),
        "microbatch_equal": lambda: processes * microbatches * counts[r][k],
        "micro_step_equal": lambda: microbatches * sum(rank[k] for rank in counts),
        "sequence_mean": lambda: size.sequences * length,
        "sequence_sum": lambda: size.sequences,
        "constant": lambda: size.sequences * (positions or 1),
    }
    return Fraction(1, divisors[name]())


def weights(candidate: str, scenario: Scenario, positions: int | None = None) -> Weights:
    """What a candidate gives a token of each sequence; `dropped` and `leaking` give 0."""
    if candidate in ("dropped", "leaking"):
        return [[[Fraction(0) for _ in cell] for cell in rank] for rank in scenario.sequences]
    name, _, scale = candidate.partition("*")
    factor = SCALES[scale or "1"](sizes(scenario, positions))
    found = rule(name, scenario, positions)
    return [[[factor * value for value in cell] for cell in rank] for rank in found]
