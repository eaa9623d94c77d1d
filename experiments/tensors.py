"""Sets of named arrays as files and as digests. NumPy only, so that published files can be checked without torch.

Two digests, and neither decides whether a path is right (the comparison with the reference does):

`raw_sha256`        the little-endian bytes of all arrays, in the order of their names. Equal for the same computation
                    on the same kind of machine; another CPU may take another order of summation.
`canonical_sha256`  for every array in that order its name, its shape, and round(x · 2^20) as little-endian int64. The
                    product is exact and the integer has no −0, so noise of 1e-16 does not show.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samestep.app.evidence.bags import TensorSet

Arrays = Mapping[str, NDArray[Any]]
CANONICAL_BITS = 20
_KINDS = {"F64": "<f8", "F32": "<f4", "I64": "<i8", "I32": "<i4", "U8": "|u1", "BOOL": "|b1"}


def save(place: Path, arrays: Arrays) -> TensorSet:
    """Write a safetensors file (no metadata: its bytes depend on the arrays alone) and say what it holds."""
    from safetensors.numpy import save as to_bytes  # only writing needs it: who just reads need not install it

    place.write_bytes(to_bytes({name: np.asarray(array, order="C") for name, array in arrays.items()}))
    return describe(arrays)


def load(place: Path) -> dict[str, NDArray[Any]]:
    """Read a safetensors file: the length of a JSON header, the header, and the arrays at the offsets it names."""
    content = place.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    header.pop("__metadata__", None)
    return {name: _array(memoryview(content)[start:], entry) for name, entry in sorted(header.items())}


def _array(data: memoryview, entry: Mapping[str, Any]) -> NDArray[Any]:
    first, last = entry["data_offsets"]
    return np.frombuffer(data[first:last], _KINDS[entry["dtype"]]).reshape(entry["shape"]).copy()


def describe(arrays: Arrays) -> TensorSet:
    return {
        "raw_sha256": raw_sha256(arrays),
        "canonical_sha256": canonical_sha256(arrays),
        "tensors": len(arrays),
        "elements": sum(array.size for array in arrays.values()),
    }


def raw_sha256(arrays: Arrays) -> str:
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(np.asarray(array, dtype=array.dtype.newbyteorder("<"), order="C").tobytes())
    return digest.hexdigest()


def canonical_sha256(arrays: Arrays) -> str:
    """Raises ValueError for arrays with values that are not finite: they have no rounded form."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = arrays[name]
        if not np.isfinite(array).all():
            raise ValueError(f"{name} holds values that are not finite")
        digest.update(json.dumps([name, list(array.shape)]).encode() + b"\n")
        digest.update(np.rint(array.astype(np.float64) * 2.0**CANONICAL_BITS).astype("<i8").tobytes())
    return digest.hexdigest()


def largest_difference(one: Arrays, other: Arrays) -> float:
    """Largest absolute difference over all elements. Raises ValueError when names or shapes differ."""
    if {name: array.shape for name, array in one.items()} != {name: array.shape for name, array in other.items()}:
        raise ValueError("the two sets hold different tensors")
    differences = [np.abs(one[name].astype(np.float64) - other[name].astype(np.float64)) for name in one]
    return max((float(difference.max()) for difference in differences if difference.size), default=0.0)
