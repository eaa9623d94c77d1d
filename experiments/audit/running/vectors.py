"""Named tensors on disk, in float64, read one at a time: a trace never sits in memory whole."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


class Writer:
    """Write a file of vectors; it replaces what was there."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._stream = path.open("wb")

    def __enter__(self) -> "Writer":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Write what the tensors are called, and where they begin."""
        self._stream.close()
        self._path.with_suffix(".json").write_text(json.dumps(self._shapes))

    def add(self, name: str, values: Array) -> None:
        """Append one tensor."""
        self._shapes[name] = values.shape
        np.ascontiguousarray(values, dtype=np.float64).tofile(self._stream)


@dataclass(frozen=True)
class Vectors:
    """Tensors by name: where each begins in the file (in numbers), and its shape."""

    path: Path
    places: Mapping[str, tuple[int, tuple[int, ...]]]

    @classmethod
    def read(cls, path: Path) -> "Vectors":
        """What a Writer wrote."""
        places, start = {}, 0
        for name, shape in json.loads(path.with_suffix(".json").read_text()).items():
            places[name] = (start, tuple(shape))
            start += prod(shape)
        return cls(path, places)

    @classmethod
    def write(cls, path: Path, tensors: Mapping[str, Array]) -> "Vectors":
        """A file of these tensors."""
        with Writer(path) as writer:
            for name, values in tensors.items():
                writer.add(name, values)
        return cls.read(path)

    def only(self, names: Iterable[str]) -> "Vectors":
        """The same file, of which only these tensors are seen."""
        wanted = set(names)
        return Vectors(self.path, {name: place for name, place in self.places.items() if name in wanted})

    @property
    def finite(self) -> bool:
        """Whether every number is."""
        return all(np.isfinite(self[name]).all() for name in self)

    def __getitem__(self, name: str) -> Array:
        start, shape = self.places[name]
        return np.fromfile(self.path, np.float64, prod(shape), offset=8 * start).reshape(shape)

    def __contains__(self, name: str) -> bool:
        return name in self.places

    def __iter__(self) -> Iterator[str]:
        return iter(self.places)

    def __len__(self) -> int:
        return len(self.places)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor."""
        return self.places[name][1]

    def size(self, name: str) -> int:
        """How many numbers a tensor has."""
        return prod(self.places[name][1])

    @property
    def numel(self) -> int:
        """How many numbers there are in all."""
        return sum(prod(shape) for _, shape in self.places.values())

    def max_abs(self, name: str) -> float:
        """The greatest magnitude in a tensor, 0 for an empty one, nan if it holds one."""
        values = self[name]
        return float(np.max(np.abs(values), initial=0.0)) if not np.isnan(values).any() else float("nan")

    @property
    def scale(self) -> float:
        """The greatest finite magnitude of all tensors."""
        return max((value for value in map(self.max_abs, self) if np.isfinite(value)), default=0.0)

    def dot(self, other: "Vectors") -> float:
        """The inner product over the tensors that both have."""
        return sum(float(np.vdot(self[name], other[name])) for name in self if name in other)

    @property
    def norm(self) -> float:
        """The Euclidean norm over all tensors."""
        return float(np.sqrt(self.dot(self)))
