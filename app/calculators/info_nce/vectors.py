"""Vectors of many ranks: how they are written in a body, and the one array that they are read into.

A body has them as `[rank][vector][number]`; every vector has the same number of dimensions, ranks may hold any number
of vectors.
"""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Annotated, Any, overload

import numpy as np

from samestep.app.contract.arrays import Floats, floats
from samestep.app.contract.errors import InputError
from samestep.app.contract.fields import number_schema
from samestep.app.contract.forms import Form
from samestep.app.contract.limits import MAX_RANKS
from samestep.app.contract.numbers import as_float
from samestep.app.mathematics.ragged import cut, place

MAX_QUERIES = 4_096
MAX_DIMENSIONS = 256
MAX_HARD_NEGATIVES = 3 * MAX_QUERIES


class Vectors(Sequence[list[list[float]]]):
    """Vectors of all ranks: item r lists those of rank r. Below it lies one array, [vector, dimension]."""

    def __init__(self, array: Floats, counts: Sequence[int]) -> None:
        self.array = array
        self.counts = tuple(counts)

    def __len__(self) -> int:
        return len(self.counts)

    @overload
    def __getitem__(self, index: int) -> list[list[float]]: ...
    @overload
    def __getitem__(self, index: slice) -> list[list[list[float]]]: ...
    def __getitem__(self, index: int | slice) -> list[list[float]] | list[list[list[float]]]:
        ranks = range(len(self))[index]
        return self._rank(ranks) if isinstance(ranks, int) else [self._rank(r) for r in ranks]

    def _rank(self, rank: int) -> list[list[float]]:
        first = sum(self.counts[:rank])
        rows: list[list[float]] = self.array[first : first + self.counts[rank]].tolist()
        return rows

    def __repr__(self) -> str:
        return f"Vectors({self.nested()})"

    def nested(self) -> list[list[list[float]]]:
        """As JSON has it: ranks, vectors, numbers."""
        return cut(self.array.tolist(), self.counts)

    @property
    def dimensions(self) -> int:
        return int(self.array.shape[1])

    def zeros(self) -> Iterator[tuple[int, int]]:
        """Rank and place of the vectors that are 0."""
        for index in np.flatnonzero(~self.array.any(axis=1)):
            yield place(self.counts, int(index))


def read_vectors(value: object) -> Vectors:
    """Nested lists (or one array a rank) as Vectors; InputError names the place that cannot be read."""
    if isinstance(value, Vectors):
        return value
    if not isinstance(value, list | tuple):
        raise InputError("must be a list of ranks", "应是各 rank 的列表", code="list_type")
    if len(value) > MAX_RANKS:
        raise InputError(f"has more than {MAX_RANKS:,} ranks", f"超过 {MAX_RANKS:,} 个 rank", code="too_long")
    if value and all(isinstance(rank, np.ndarray) and rank.ndim == 2 and rank.dtype.kind in "fiu" for rank in value):
        return _from_arrays(value)
    for r, rank in enumerate(value):
        for i, row in enumerate(rank if isinstance(rank, list | tuple) else [None]):
            if not isinstance(row, list | tuple):
                raise InputError(f"[{r}][{i}] must be a list of numbers", f"[{r}][{i}] 应是数的列表", code="list_type")
    rows = list(chain.from_iterable(value))
    counts = list(map(len, value))
    return Vectors(_numbers(rows, counts), counts)


def _from_arrays(ranks: Sequence[Any]) -> Vectors:
    if len({rank.shape[1] for rank in ranks}) > 1:
        raise InputError("has vectors of different dimensions", "各向量的维数不同", code="shape_mismatch")
    array = np.concatenate(ranks).astype(np.float64)
    if not np.isfinite(array).all():
        raise InputError("must hold finite numbers", "必须全是有限的数", code="finite_number")
    return Vectors(array, [len(rank) for rank in ranks])


def _numbers(rows: list[list[Any]], counts: Sequence[int]) -> Floats:
    """[vector, dimension], of rows of one length."""
    width = len(rows[0]) if rows else 0
    for index, row in enumerate(rows):
        if len(row) != width:
            r, i = place(counts, index)
            en = f"[{r}][{i}] has {len(row)} dimensions, the first vector has {width}"
            raise InputError(en, f"[{r}][{i}] 有 {len(row)} 维，首个向量有 {width} 维", code="shape_mismatch")
    try:
        flat = floats(list(chain.from_iterable(rows)), as_float, lambda k: (*place(counts, k // width), k % width))
    except InputError as error:  # a field's own error can only name its place in words
        where = "".join(f"[{step}]" for step in error.field)
        raise InputError(f"{where} {error.en}", f"{where} {error.zh}", code=error.code) from None
    return flat.reshape(len(rows), width)


def misfits(named: dict[str, Vectors], q: Vectors) -> Iterator[InputError]:
    """What is wrong with the shapes of fields that go with the queries `q`, one of them."""
    for name, vectors in named.items():
        limit = MAX_HARD_NEGATIVES if name == "hard_negatives" else MAX_QUERIES
        if len(vectors.array) > limit:
            en, zh = f"{name} has more than {limit:,} vectors", f"{name} 超过 {limit:,} 个向量"
            yield InputError(en, zh, name, "too_long")
        if vectors.dimensions > MAX_DIMENSIONS:
            en, zh = f"{name} has more than {MAX_DIMENSIONS} dimensions", f"{name} 超过 {MAX_DIMENSIONS} 维"
            yield InputError(en, zh, name, "too_long")
        if len(vectors) != len(q):
            en = f"{name} has {len(vectors)} ranks, q has {len(q)}"
            yield InputError(en, f"{name} 有 {len(vectors)} 个 rank，q 有 {len(q)} 个", name, "shape_mismatch")
        if len(vectors.array) and vectors.dimensions != q.dimensions:
            en = f"{name} has {vectors.dimensions} dimensions, q has {q.dimensions}"
            yield InputError(en, f"{name} 是 {vectors.dimensions} 维，q 是 {q.dimensions} 维", name, "shape_mismatch")


def _schema(vectors: int, least: int) -> dict[str, Any]:
    numbers = {"type": "array", "minItems": 1, "maxItems": MAX_DIMENSIONS, "items": number_schema()}
    rank = {"type": "array", "minItems": least, "maxItems": vectors, "items": numbers}
    return {
        "type": "array",
        "minItems": 1,
        "maxItems": MAX_RANKS,
        "items": rank,
        "description": "[rank][vector][number]",
    }


_hard_schema = _schema(MAX_HARD_NEGATIVES, 0)
Pairs = Annotated[Vectors, Form("json", read_vectors, _schema(MAX_QUERIES, 1), Vectors.nested)]
"""The queries, or the documents, of every rank."""
HardNegatives = Annotated[
    Vectors | None,
    Form("json", read_vectors, {"anyOf": [_hard_schema, {"type": "null"}]}, Vectors.nested).optional(),
]
Gradients = Annotated[Vectors, Form("json", read_vectors, _hard_schema, Vectors.nested)]
