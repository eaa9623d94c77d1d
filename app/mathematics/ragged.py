"""Lists of different lengths laid end to end, and the place of each entry in the lists.

`sizes[r]` is the length of list r; an index counts through all lists.
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import TypeVar

import numpy as np

_Entry = TypeVar("_Entry")


def place(sizes: Sequence[int], index: int) -> tuple[int, int]:
    """The list that an index falls into, and the place there."""
    ends = np.cumsum(sizes)
    r = int(np.searchsorted(ends, index, side="right"))
    return r, index - int(ends[r] - sizes[r])


def cut(values: list[_Entry], sizes: Sequence[int]) -> list[list[_Entry]]:
    """The lists again."""
    return [values[start:end] for start, end in pairwise(accumulate(sizes, initial=0))]
