"""What is told when an answer is beyond float64: which number given is the farthest from what float64 holds well."""

import math
from collections.abc import Iterator, Mapping
from operator import itemgetter
from typing import Any

from pydantic import BaseModel

from samestep.app.contract.arrays import Path
from samestep.app.contract.errors import InputError
from samestep.app.contract.numbers import as_float


def beyond_float64(given: BaseModel) -> InputError:
    """Names the number given whose size is the farthest from 1, the first of those that are."""
    path = max(_sizes(given, ()), key=itemgetter(0), default=(0.0, ()))[1]
    en, zh = "leads to a result beyond float64's range", "得到的结果超出 float64 的范围"
    return InputError(en, zh, field=path, code="number_range")


def _sizes(value: Any, path: Path) -> Iterator[tuple[float, Path]]:
    """Every number with its place: how many powers of two it is away from 1."""
    if isinstance(value, BaseModel):
        for name in type(value).model_fields:
            yield from _sizes(getattr(value, name), (*path, name))
    elif isinstance(value, Mapping):
        for name, entry in value.items():
            yield from _sizes(entry, (*path, name))
    elif isinstance(value, list | tuple):
        for index, entry in enumerate(value):
            yield from _sizes(entry, (*path, index))
    elif hasattr(value, "nested"):  # vectors of many ranks, in one array
        yield from _sizes(value.nested(), path)
    elif not isinstance(value, bool) and value is not None:
        yield _size(value), path


def _size(value: Any) -> float:
    try:
        number = abs(as_float(value))
    except InputError:
        return -1.0  # a word
    return abs(math.log2(number)) if number else 0.0
