"""The loss scales of all ranks, how they are written, and how a dynamic scale moves.

The rule is that of `torch.amp.GradScaler` (documentation; defaults of torch 2.13): on a skip S·0.5 and the growth
tracker 0; on a step the tracker goes up by one, and where it then equals the growth interval, S·2 and the tracker 0. A
tracker that is already past the interval therefore never grows the scale. A static scale has no such rule: neither
scale nor tracker changes. Not modelled: the float32 in which GradScaler keeps its scale.
"""

from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema

from samestep.app.contract.errors import InputError
from samestep.app.contract.fields import number_schema
from samestep.app.contract.limits import MAX_RANKS
from samestep.app.contract.numbers import positive
from samestep.app.contract.rows import split_rows
from samestep.app.mathematics.ragged import Floats

Flags = NDArray[np.bool_]

GROWTH_FACTOR = 2.0
BACKOFF_FACTOR = 0.5


def _scales(value: object) -> tuple[Fraction, ...]:
    """One scale, or a list with one for each rank."""
    if not isinstance(value, list | tuple):
        return (positive(value),)
    scales = []
    try:
        for scale in value:
            scales.append(positive(scale))
    except InputError as error:
        place_en, place_zh = f"value {len(scales) + 1} ", f"第 {len(scales) + 1} 个值"
        raise InputError(place_en + error.en, place_zh + error.zh, code=error.code) from None
    return tuple(scales)


def _scales_in_text(value: object) -> tuple[Fraction, ...]:
    """`65536`, or `8;4` or `8,4`."""
    cells = [cell for row in split_rows(value) for cell in row] if isinstance(value, str) else [value]
    return _scales(cells[0] if len(cells) == 1 else cells)


_ONE_SCALE = number_schema(exclusiveMinimum=0)
Scales = Annotated[
    tuple[Fraction, ...],
    BeforeValidator(_scales),
    WithJsonSchema({"anyOf": [_ONE_SCALE, {"type": "array", "items": _ONE_SCALE, "maxItems": MAX_RANKS}]}),
]
"""One for all ranks, or one each."""
ScaleText = Annotated[
    tuple[Fraction, ...],
    BeforeValidator(_scales_in_text),
    PlainSerializer(lambda scales: ";".join(map(str, scales)), when_used="json"),
    WithJsonSchema({"anyOf": [_ONE_SCALE, {"type": "string", "examples": ["65536", "8;4"]}]}),
]


@dataclass(frozen=True)
class LossScaler:
    """Applied on each rank by the flag that it follows."""

    tracker: int
    interval: int
    static: bool

    def update(self, scale: Floats, flags: Flags) -> tuple[list[float], list[int]]:
        """The next scale and growth tracker of every rank; InputError where float64 cannot hold a scale."""
        if self.static:
            return scale.tolist(), [self.tracker] * len(scale)
        grown = self.tracker + 1 == self.interval
        after = scale * np.where(flags, BACKOFF_FACTOR, GROWTH_FACTOR if grown else 1.0)
        if not np.isfinite(after).all() or (after == 0).any():
            en, zh = "would grow or back off out of float64", "增长或回退后超出 float64 的范围"
            raise InputError(en, zh, field="scale", code="number_range")
        stepped = 0 if grown else self.tracker + 1
        return after.tolist(), np.where(flags, 0, stepped).tolist()
