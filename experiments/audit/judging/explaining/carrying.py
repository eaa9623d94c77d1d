"""Does a microbatch's gradient depend on the microbatches before it: a hidden state, a queue, a running statistic?

The step is run on one process with two microbatches, once a before c and once b before c. Where nothing is carried
over, the second backward adds the same in both. The three are single samples of the same weight, so that a division by
counts of the window is the same as well; what a step does otherwise in its first or last microbatch is, too.
"""

from collections.abc import Sequence
from itertools import islice

import numpy as np

from samestep.experiments.audit.failure import ReaderError
from samestep.experiments.audit.judging.case import Case
from samestep.experiments.audit.judging.explaining.crossterms import has_no_cross_terms
from samestep.experiments.audit.running.perform import Variation
from samestep.experiments.audit.running.trace import PART
from samestep.experiments.audit.running.variations import Cell
from samestep.experiments.audit.running.vectors import Vectors
from samestep.experiments.audit.telling.report import Finding
from samestep.experiments.audit.telling.wording import finding


def carried_over(case: Case) -> Finding | None:
    """A finding if what a backward adds depends on the microbatch before, where samples are independent within one."""
    if case.variations is None or case.microbatches < 2 or case.blurred or case.drawn:
        return None
    alike = _three_alike(case.weights)
    if not alike or not has_no_cross_terms(case):
        return None
    a, b, c = alike
    one, other = _added_second(case, a, c), _added_second(case, b, c)
    if one is None or other is None or set(one) != set(other):
        return None
    missed = sum(float(np.sum((one[name] - other[name]) ** 2)) for name in one) ** 0.5
    return finding(case, "carried_over") if missed > case.apart * one.norm else None


def _three_alike(weights: Sequence[float]) -> list[Cell]:
    """Three samples of the same weight, each by itself; none where there are no three."""
    for weight in dict.fromkeys(filter(None, weights)):
        found = list(islice((i for i, each in enumerate(weights) if each == weight), 3))
        if len(found) == 3:
            return [(i,) for i in found]
    return []


def _added_second(case: Case, first: Cell, second: Cell) -> Vectors | None:
    """What the second backward adds, of the step on one process with these two microbatches."""
    assert case.variations is not None
    try:
        trace = case.variations.run(Variation(shares=(first, second)))
    except ReaderError:  # a step that cannot be run so says nothing
        return None
    return trace.vectors[PART.format(1)] if trace.parts == 2 else None
