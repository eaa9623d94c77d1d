"""The indices that `torch.utils.data.DistributedSampler` hands to each rank, without torch; or those of a loader that
fills up with the last sample.

D = `size` samples, P = `replicas`. The sampler puts the samples in an order, makes its length a multiple of P, and rank
r takes places r, r + P, … (source of torch 2.13.0). The order is 0 … D - 1, or with shuffling
`torch.randperm(D, generator=g)` with g seeded by seed + epoch. On a CPU that is a Fisher-Yates shuffle,

    for i = 0 … D - 2:  swap places i and i + (word_i mod (D - i))

in which word_i are the 32-bit outputs of the Mersenne Twister MT19937, seeded by the low 32 bits (ATen's
`TensorFactories.cpp` and `MT19937RNGEngine.h`). NumPy's `RandomState` runs the same generator from the same seed.
Orders of 2^32/20 samples or more are shuffled otherwise.
"""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]
Repeat = Literal["start", "last"]

_WORDS = 2**32


def order(size: int, seed: int | None) -> Indices:
    """0 … size - 1, shuffled as `torch.randperm` does if there is a seed; size must be below 2^32/20."""
    if seed is None:
        return np.arange(size, dtype=np.int64)
    generator = np.random.RandomState(seed % _WORDS)
    words = generator.randint(0, _WORDS, size=size, dtype=np.uint32).tolist()
    places = list(range(size))
    for i in range(size - 1):
        j = i + words[i] % (size - i)
        places[i], places[j] = places[j], places[i]
    return np.array(places, dtype=np.int64)


def deal(ordered: Indices, replicas: int, drop_last: bool, repeat: Repeat = "start") -> tuple[Indices, Indices]:
    """What every rank gets, (P, samples a rank), and what is left over.

    Without `drop_last` the order is repeated from its beginning, more than once if it is shorter than P; or its last
    sample is, as often as it takes.
    """
    size = len(ordered)
    per_rank = size // replicas if drop_last else -(-size // replicas)
    total = per_rank * replicas
    if repeat == "start":
        filled = np.resize(ordered, total)
    else:
        filled = np.concatenate([ordered[:total], np.repeat(ordered[-1:], max(0, total - size))])
    return filled.reshape(per_rank, replicas).T, ordered[total:]
