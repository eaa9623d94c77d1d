"""Complex tensors as two real ones: a fault may be of the real or of the imaginary part alone."""

from collections.abc import Collection
from itertools import count
from pathlib import Path

from samestep.experiments.audit.running.vectors import Vectors, Writer

_NUMBERS = count()


def in_parts(vectors: Vectors, names: Collection[str], folder: Path) -> Vectors:
    """The same vectors, of which these tensors are `name.real` and `name.imag`; they are kept with both, last axis."""
    if not any(name in vectors for name in names):
        return vectors
    place = folder / f"parts{next(_NUMBERS)}.f64"
    with Writer(place) as writer:
        for name in vectors:
            values = vectors[name]
            if name in names:
                writer.add(f"{name}.real", values[..., 0])
                writer.add(f"{name}.imag", values[..., 1])
            else:
                writer.add(name, values)
    return Vectors.read(place)
