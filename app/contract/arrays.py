"""Numbers as they are typed, read into arrays; an error names the place of the bad one."""

from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from samestep.app.contract.errors import InputError
from samestep.app.contract.numbers import exact
from samestep.app.contract.rows import ExtendedRows, Rows

Floats = NDArray[np.float64]
Path = tuple[str | int, ...]
Written = int | float | str


def floats(values: Sequence[Written], path: Path, read: Callable[[object], Fraction | float] = exact) -> Floats:
    """A list as float64, (d,); InputError names the entry that cannot be used."""
    if str not in set(map(type, values)):
        try:
            return np.array(values, dtype=np.float64)
        except OverflowError:
            pass  # an integer beyond float64: the reading below names its place
    numbers: list[float] = []
    try:
        numbers.extend(float(read(value)) for value in values)
    except InputError as error:
        raise InputError(error.en, error.zh, field=(*path, len(numbers)), code=error.code) from None
    return np.array(numbers)


def rectangle(rows: Sequence[Sequence[Written]], field: str, row_en: str, row_zh: str) -> Floats:
    """Rows of one length as float64, (rows, d); `row_en` and `row_zh` are what a row is called (`rank`)."""
    width = len(rows[0])
    for r, row in enumerate(rows):
        if len(row) != width or width == 0:
            en = f"of {row_en} {r} have {len(row)} values; every {row_en} needs as many as the first, at least one"
            zh = f"在{row_zh} {r} 有 {len(row)} 个值；每个{row_zh}应与第一个同样多，且至少一个"
            raise InputError(en, zh, field=(field, r), code="shape_mismatch")
    return np.array([floats(row, (field, r)) for r, row in enumerate(rows)])


def one_list(rows: Rows | ExtendedRows) -> list[float]:
    """All values in one list, whatever stood between them: a list may be pasted as a row or as a column."""
    return [float(value) for row in rows for value in row]
