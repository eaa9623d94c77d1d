"""Lists of different lengths laid end to end: their numbers as one float64 array, and the place of each in the lists.

`sizes[r]` is the length of list r; an index counts through all lists.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from samestep.app.contract.errors import InputError

Floats = NDArray[np.float64]
Path = tuple[str | int, ...]

_Entry = TypeVar("_Entry")


def floats(values: list[Any], read: Callable[[object], float], path: Callable[[int], Path]) -> Floats:
    """Numbers as typed, read by `read` where they are not plain; InputError names the `path` of the first bad one."""
    if set(map(type, values)) <= {float, int}:
        try:
            array = np.array(values, dtype=np.float64)
        except OverflowError:  # an integer beyond float64: the reading below names its place
            array = np.array([np.nan])
        if np.isfinite(array).all():
            return array
    numbers: list[float] = []
    try:
        for value in values:
            numbers.append(read(value))
    except InputError as error:
        raise InputError(error.en, error.zh, field=path(len(numbers)), code=error.code) from None
    return np.array(numbers)


def place(sizes: Sequence[int], index: int) -> tuple[int, int]:
    """The list that an index falls into, and the place there."""
    ends = np.cumsum(sizes)
    r = int(np.searchsorted(ends, index, side="right"))
    return r, index - int(ends[r] - sizes[r])


def cut(values: list[_Entry], sizes: Sequence[int]) -> list[list[_Entry]]:
    """The lists again."""
    return [values[start:end] for start, end in pairwise(accumulate(sizes, initial=0))]
