"""The weight of a token under the aggregation of a reinforcement-learning loss, by its cell and its completion.

Cell (r, k) of P ranks × K microsteps holds B_rk completions with T_rk tokens, B and N in all; rank r holds B_r. After
accumulation and a mean over ranks a token of completion i weighs a/(b·d_i): a and b belong to its cell or group, d_i is
the completion's length L_i, the constant C, or 1. A completion without tokens weighs 0. What each name divides by was
read in TRL's `grpo_trainer.py` and verl's `core_algos.py` and `dp_actor.py`; the chapter on reinforcement learning
lists the versions.
"""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import numpy as np

from samestep.app.calculators.rl_weights.rollout import Ints, Rollout
from samestep.app.contract.arrays import Floats
from samestep.app.contract.models import Reason

ObjectiveName = Literal[
    "sequence_mean",
    "token_mean",
    "token_mean_per_group",
    "constant",
    "constant_sum",
    "sequence_sum",
    "token_sum",
]
SchemeName = Literal[
    "trl_grpo",
    "trl_bnpo",
    "trl_dr_grpo",
    "trl_dapo",
    "trl_luspo",
    "verl_token_mean",
    "verl_seq_mean_token_sum",
    "verl_seq_mean_token_mean",
    "verl_seq_mean_token_sum_norm",
    "verl_token_sum",
    "verl_seq_mean_token_sum_norm_before_5366",
    "verl_token_mean_per_microbatch",
    "verl_token_mean_dynamic",
]

Share = tuple[Ints | int, Ints | int]
"""a and b: of every completion, (B,), or one number for all."""


@dataclass(frozen=True)
class Given:
    """An update, and what its aggregation is told: the constant C, and the tokens that TRL counted."""

    rollout: Rollout
    constant: Fraction
    counted: int

    @property
    def completions(self) -> int:
        """B."""
        return len(self.rollout.lengths)

    def of_cells(self, counts: Ints) -> Ints:
        """Repeat a value of each cell for its completions."""
        return counts[self.rollout.cell]


@dataclass(frozen=True)
class Rule:
    """How one name divides: `share` is a/b, `divisor` what d_i is. A mean over `needs` is undefined where there are
    none: in the window, or in one of the cells."""

    share: Callable[[Given], Share]
    divisor: Literal["length", "constant", "one"] = "one"
    needs: Literal["nothing", "tokens", "completions", "tokens_in_cells", "completions_in_cells"] = "nothing"

    def reason(self, rollout: Rollout) -> Reason | None:
        """Why there is no weight; None where there is one."""
        if self.needs == "nothing":
            return None
        counts = rollout.tokens if self.needs.startswith("tokens") else rollout.counts
        if not counts.any():
            return "zero_count"
        return "empty_cell" if self.needs.endswith("in_cells") and not counts.all() else None


def _over_cell_completions(given: Given) -> Share:
    return 1, given.rollout.cells * given.of_cells(given.rollout.counts)


def _over_cell_tokens(given: Given) -> Share:
    return 1, given.rollout.cells * given.of_cells(np.maximum(given.rollout.tokens, 1))


def _over_completions(given: Given) -> Share:
    return 1, given.completions


def _over_tokens(given: Given) -> Share:
    return 1, given.rollout.total


def _over_group_tokens(given: Given) -> Share:
    rollout = given.rollout
    return 1, rollout.groups * np.maximum(rollout.group_tokens, 1)[rollout.labels]


def _by_samples(given: Given) -> Share:
    rollout = given.rollout
    below = rollout.ranks * rollout.rank_counts * rollout.tokens
    return given.of_cells(rollout.counts), given.of_cells(below)


def _one(_: Given) -> Share:
    return 1, 1


OBJECTIVES: dict[ObjectiveName, Rule] = {
    "sequence_mean": Rule(_over_completions, "length", "completions"),
    "token_mean": Rule(_over_tokens, needs="tokens"),
    "token_mean_per_group": Rule(_over_group_tokens, needs="tokens"),
    "constant": Rule(_over_completions, "constant", "completions"),
    "constant_sum": Rule(_one, "constant"),
    "sequence_sum": Rule(_over_completions, needs="completions"),
    "token_sum": Rule(_one),
}
SCHEMES: dict[SchemeName, tuple[ObjectiveName, Rule]] = {
    "trl_grpo": ("sequence_mean", Rule(_over_cell_completions, "length", "completions_in_cells")),
    "trl_bnpo": ("token_mean", Rule(_over_cell_tokens)),
    "trl_dr_grpo": ("constant", Rule(_over_cell_completions, "constant", "completions_in_cells")),
    "trl_dapo": ("token_mean", Rule(lambda given: (1, max(given.counted, 1)))),
    "trl_luspo": ("sequence_sum", Rule(_over_cell_completions, needs="completions_in_cells")),
    "verl_token_mean": ("token_mean", OBJECTIVES["token_mean"]),
    "verl_seq_mean_token_sum": ("sequence_sum", OBJECTIVES["sequence_sum"]),
    "verl_seq_mean_token_mean": ("sequence_mean", OBJECTIVES["sequence_mean"]),
    "verl_seq_mean_token_sum_norm": ("constant", OBJECTIVES["constant"]),
    "verl_token_sum": ("token_sum", OBJECTIVES["token_sum"]),
    "verl_seq_mean_token_sum_norm_before_5366": (
        "constant_sum",
        Rule(lambda given: (1, given.rollout.ranks), "constant"),
    ),
    "verl_token_mean_per_microbatch": ("token_mean", Rule(_over_cell_tokens, needs="tokens_in_cells")),
    "verl_token_mean_dynamic": ("token_mean", Rule(_by_samples, needs="tokens_in_cells")),
}


class Weights:
    """What a rule that is defined gives every completion; arrays (B,)."""

    def __init__(self, rule: Rule, given: Given) -> None:
        self.above, self.below = rule.share(given)
        self._divisor, self._given = rule.divisor, given
        self._filled = given.rollout.lengths > 0

    def floats(self) -> Floats:
        """The weight of a token of each completion in float64."""
        lengths = self._given.rollout.lengths
        divisor: Ints | float = np.maximum(lengths, 1) if self._divisor == "length" else 1.0
        if self._divisor == "constant":
            divisor = float(self._given.constant)
        return np.where(self._filled, self._shares() / divisor, 0.0)

    def ratios(self, count: int) -> list[tuple[int, int]]:
        """The same in whole numbers, above and below, not reduced; of the first `count` completions."""
        lengths = self._given.rollout.lengths[:count].tolist()
        parts = (np.broadcast_to(part, self._filled.shape)[:count].tolist() for part in (self.above, self.below))
        up, down = self._given.constant.as_integer_ratio() if self._divisor == "constant" else (1, 1)
        by_length = self._divisor == "length"
        return [
            (a * down, b * up * (length if by_length else 1)) if length else (0, 1)
            for a, b, length in zip(*parts, lengths, strict=True)
        ]

    def same_as(self, other: "Weights") -> bool:
        """Whether all tokens weigh the same under a rule of the same divisor.

        Shares are multiplied crosswise in whole numbers, and only where they are nearly equal: then no product leaves
        63 bits.
        """
        mine, theirs = self._shares(), other._shares()
        if not np.allclose(mine[self._filled], theirs[self._filled], rtol=1e-9, atol=0):
            return False
        equal = np.equal(self.above * other.below, other.above * self.below)
        return bool(np.broadcast_to(equal, self._filled.shape)[self._filled].all())

    def _shares(self) -> Floats:
        above, below = np.asarray(self.above, dtype=np.float64), np.asarray(self.below, dtype=np.float64)
        return np.broadcast_to(above / below, self._filled.shape)
