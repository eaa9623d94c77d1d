"""Does a microbatch's gradient depend on the microbatches before it: a hidden state, a queue, a running statistic?

The step is run on one process with two microbatches, G(a, c) for a before c. Where nothing is carried over,
G(a, c) - G(b, c) is what a and b make by themselves, and so the same for any c: the second difference

    G(a, c) - G(b, c) - G(a, d) + G(b, d)

is zero. What a step does otherwise in its first, last or any other microbatch drops out of it, and a division by counts
of the window does as well: a, b, c and d are single samples of the same weight.
"""

from collections.abc import Sequence
from itertools import islice

import numpy as np

from samestep.experiments.audit.failure import ReaderError
from samestep.experiments.audit.judging.case import Case
from samestep.experiments.audit.judging.crossterms import has_no_cross_terms
from samestep.experiments.audit.running.perform import Variation
from samestep.experiments.audit.running.variations import Cell
from samestep.experiments.audit.running.vectors import Vectors
from samestep.experiments.audit.telling.report import Finding
from samestep.experiments.audit.telling.wording import finding


def carried_over(case: Case) -> Finding | None:
    """A finding if the second difference is not zero, where one microbatch has no terms between its samples."""
    if case.variations is None or case.microbatches < 2 or case.blurred or case.drawn:
        return None
    alike = _four_alike(case.weights)
    if not alike or not has_no_cross_terms(case):
        return None
    a, b, c, d = alike
    runs = [_after(case, first, second) for first in (a, b) for second in (c, d)]
    found = [each for each in runs if each is not None]
    if len(found) < len(runs):
        return None
    names = [name for name in found[0] if all(name in each for each in found)]
    missed = sum(float(np.sum((found[0][n] - found[2][n] - found[1][n] + found[3][n]) ** 2)) for n in names) ** 0.5
    if missed <= case.apart * found[0].norm:
        return None
    return finding(case, "carried_over")


def _four_alike(weights: Sequence[float]) -> list[Cell]:
    """Four samples of the same weight, each by itself; none where there are no four."""
    for weight in dict.fromkeys(filter(None, weights)):
        found = list(islice((i for i, each in enumerate(weights) if each == weight), 4))
        if len(found) == 4:
            return [(i,) for i in found]
    return []


def _after(case: Case, first: Cell, second: Cell) -> Vectors | None:
    """The gradient of the step on one process with these two microbatches."""
    assert case.variations is not None
    try:
        trace = case.variations.run(Variation(shares=(first, second)))
    except ReaderError:  # a step that cannot be run so says nothing
        return None
    found = trace.vectors.get("computed") or trace.vectors.get("gradient")
    return found if found is not None and found.finite else None
