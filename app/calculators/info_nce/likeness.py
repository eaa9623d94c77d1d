"""When gradients count as those of the full objective: where the difference is nothing beside what they can be.

With N queries and s = 1/τ, a query's gradient is made of terms of the size s·‖c‖/N, a candidate's of terms that are
together of the size s·‖q‖, and ∂L/∂log s is a mean of logits. A difference may be 1e-8 of the largest right entry, or
the rounding of terms of these sizes, which may have cancelled: gradients of 1e-16 where terms are of the size 1 are
rounding, and match. All of it is proportional to the gradients, so that the verdict does not depend on any unit.
"""

import math
from dataclasses import dataclass

import numpy as np

from samestep.app.calculators.info_nce.embeddings import Embeddings
from samestep.app.calculators.info_nce.flows import Outcomes
from samestep.app.calculators.info_nce.unit_vectors import lengths_of
from samestep.app.contract.arrays import Floats

RELATIVE = 1e-8
_EPSILON = float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class Sizes:
    """What derivatives can be: those of the vectors "q", "d", "h", and of the log scale; and the largest logit.

    A row's probabilities add up to 1, so that it has terms of one logit together; a sigmoid has them of every column.
    """

    vectors: dict[str, float]
    log_scale: float
    logits: float

    @classmethod
    def of(cls, embeddings: Embeddings) -> "Sizes":
        """inf where float64 cannot hold the logits or the gradients."""
        queries, s = len(embeddings.q), embeddings.scale
        longest_q, longest_c = (float(lengths_of(side).max()) for side in (embeddings.q, embeddings.candidates))
        of_q = of_c = 0.0
        for direction, share in embeddings.directions.items():
            # the mean over rows divides a row's gradient by N; a column's gradient is a sum of N such parts
            by_q, by_c = (queries, 1) if direction == "q2d" else (1, queries)
            of_q += share * s * longest_c / by_q
            of_c += share * s * longest_q / by_c
        sizes = {"q": of_q, "d": of_c, "h": of_c}
        if embeddings.lengths is not None:
            sizes = {name: sizes[name] / lengths.min(initial=math.inf) for name, lengths in embeddings.lengths.items()}
        similarity, bias = s * longest_q * longest_c, embeddings.logits.bias
        if bias is None:
            return cls(sizes, similarity, similarity)
        columns = len(embeddings.candidates)
        return cls(sizes | {"q": columns * sizes["q"]}, columns * similarity, similarity + abs(bias))

    def finite(self) -> bool:
        return all(map(math.isfinite, (*self.vectors.values(), self.log_scale, self.logits)))

    @property
    def rounding(self) -> float:
        """Of a term of size 1: probabilities inherit the rounding of the logits, which grows with them."""
        return min(1e-12 + 4.0 * _EPSILON * self.logits, 1e-6)


@dataclass(frozen=True)
class Differences:
    """The largest differences of K schemes' gradients from the first one's, [K], and whether they are nothing."""

    largest: dict[str, list[float]]
    vectors_match: list[bool]
    log_scale_matches: list[bool]


def differences(outcomes: Outcomes, sizes: Sizes) -> Differences:
    """Compare all schemes with the first one."""
    rounding, largest, match = sizes.rounding, {}, np.ones(len(outcomes.log_scale), dtype=np.bool_)
    for name, size in sizes.vectors.items():
        gradients: Floats = getattr(outcomes, name)
        apart = gradients - gradients[0]
        furthest = np.abs(apart, out=apart).max(axis=(1, 2), initial=0.0)
        largest[name] = furthest.tolist()
        match &= furthest <= _allowed(gradients[0], size, rounding)
    log_scale = outcomes.log_scale
    log_matches = np.abs(log_scale - log_scale[0]) <= _allowed(log_scale[:1], sizes.log_scale, rounding)
    return Differences(largest, match.tolist(), log_matches.tolist())


def _allowed(right: Floats, size: float, rounding: float) -> float:
    return RELATIVE * float(np.abs(right).max(initial=0.0)) + rounding * size
