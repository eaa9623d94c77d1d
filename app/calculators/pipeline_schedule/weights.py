"""What each microbatch's mean gradient weighs in `.grad` after K calls of a pipeline schedule.

n_k microbatches in call k = 1 … K, n_kj items in microbatch j of it, N in all; losses are divided by K.

    mean_loss_scaled_once, loss_divided_not_scaled   1/(K·n_k)
    global_count                                     n_kj/N             the right one
    sum_loss                                         n_kj
    divided_twice                                    1/(K·n_k²)         a mean over microbatches, scaled once more
    not_divided                                      1/K
    rescaled_after_every_call                        (1/K)·Π 1/n_j over j ≥ k: each call divides all that is in .grad
    wiped_between_microbatches                       1/(K·n_K) for the very last microbatch, else 0
    wiped_between_calls                              1/(K·n_K) in the last call, else 0

Source of the scaling: `_PipelineStageBase.scale_grads` of torch 2.13, which divides every `.grad` by n at the end of a
call; with gradients of earlier calls in it that is `rescaled_after_every_call` (pytorch/torchtitan#1733).
"""

from collections.abc import Callable
from fractions import Fraction
from itertools import accumulate
from typing import Any, Literal

import numpy as np

from samestep.app.mathematics.window import Numbers, Window

SchemeName = Literal[
    "mean_loss_scaled_once",
    "loss_divided_not_scaled",
    "global_count",
    "sum_loss",
    "divided_twice",
    "not_divided",
    "rescaled_after_every_call",
    "wiped_between_microbatches",
    "wiped_between_calls",
]


def weights(window: Window) -> dict[SchemeName, Callable[[], Numbers]]:
    """Each scheme's weights over the microbatches, (C,), made when asked for; a row of the window is a call."""
    calls = len(window.sizes)

    def of_calls(values: list[Any]) -> Numbers:
        return window.over_cells(np.array(values, dtype=window.counts.dtype))

    def even(power: int) -> Numbers:
        return of_calls([window.one / (calls * n**power) for n in window.sizes])

    def last(microbatches: int) -> Numbers:
        kept = np.full(len(window.counts), window.number(0), dtype=window.counts.dtype)
        kept[-microbatches:] = window.one / (calls * window.sizes[-1])
        return kept

    def rescaled() -> Numbers:
        products = accumulate(reversed(window.sizes), lambda product, n: product / n, initial=window.one / calls)
        return of_calls(list(products)[:0:-1])

    return {
        "mean_loss_scaled_once": lambda: even(1),
        "loss_divided_not_scaled": lambda: even(1),
        "global_count": lambda: window.counts / window.total,
        "sum_loss": lambda: window.counts,
        "divided_twice": lambda: even(2),
        "not_divided": lambda: even(0),
        "rescaled_after_every_call": rescaled,
        "wiped_between_microbatches": lambda: last(1),
        "wiped_between_calls": lambda: last(window.sizes[-1]),
    }


def uniform_factor(found: Numbers, right: Numbers) -> Fraction | float | None:
    """The one factor between two lists of weights; None where there is none."""
    filled = right != 0
    if not filled.any() or (found[~filled] != 0).any():
        return None
    ratios = found[filled] / right[filled]
    first: Fraction | float = ratios[0]
    if ratios.dtype == object:
        return first if (ratios == first).all() else None
    return first if np.allclose(ratios, float(first), rtol=1e-12, atol=0) else None
