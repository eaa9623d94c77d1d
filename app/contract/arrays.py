"""Numbers as they are typed, read into arrays; an error names the place of the bad one."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samestep.app.contract.errors import InputError
from samestep.app.contract.numbers import as_float

Floats = NDArray[np.float64]
Path = tuple[str | int, ...]
Written = int | float | str


def floats(values: Sequence[Any], read: Callable[[object], float], path: Callable[[int], Path]) -> Floats:
    """Numbers as typed, (d,), read by `read` where they are not plain; InputError names the `path` of the first bad
    one."""
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


def rectangle(rows: Sequence[Sequence[Written]], field: str, row_en: str, row_zh: str) -> Floats:
    """Rows of one length as float64, (rows, d); `row_en` and `row_zh` are what a row is called (`rank`)."""
    width = len(rows[0])
    for r, row in enumerate(rows):
        if len(row) != width or width == 0:
            en = f"of {row_en} {r} have {len(row)} values; every {row_en} needs as many as the first, at least one"
            zh = f"在{row_zh} {r} 有 {len(row)} 个值；每个{row_zh}应与第一个同样多，且至少一个"
            raise InputError(en, zh, field=(field, r), code="shape_mismatch")
    flat = floats([value for row in rows for value in row], as_float, lambda index: (field, *divmod(index, width)))
    return flat.reshape(len(rows), width)


def one_list(rows: Iterable[Iterable[Any]]) -> list[float]:
    """All values in one list, whatever stood between them: a list may be pasted as a row or as a column."""
    return [float(value) for row in rows for value in row]
