"""Scaled gradients, loss scales and parameters of all ranks, and the step that a rank without a flag takes.

Rank r holds d_r gradient values under the loss scale S_r, and as many parameters. With a reduction over ranks every
rank then holds the same sums or means; without one the ranks hold shards of any length. A rank's flag says whether what
it holds is non-finite.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from samestep.app.calculators.overflow_skip.loss_scaler import Flags
from samestep.app.contract.arrays import Floats, floats
from samestep.app.contract.errors import InputError
from samestep.app.contract.limits import MAX_CELLS, MAX_LISTED_CELLS
from samestep.app.contract.numbers import as_float, extended
from samestep.app.mathematics.ragged import cut, place

RawRows = Sequence[list[int | float | str]]
Reduction = Literal["mean", "sum"]


@dataclass(frozen=True, eq=False)
class ScaledGradients:
    """All ranks laid end to end: `held` (after the reduction), `unscaled` and `param` have one entry an element,
    `scale` and the flags, `before` and `after` the reduction, one a rank."""

    size: NDArray[np.intp]
    held: Floats
    unscaled: Floats
    param: Floats
    scale: Floats
    before: Flags
    after: Flags

    @classmethod
    def of(
        cls, scaled_grads: RawRows, params: RawRows, scales: Sequence[Fraction], reduce: Reduction | None
    ) -> "ScaledGradients":
        """InputError names what does not fit together, cannot be read, or leaves float64."""
        sizes = list(map(len, scaled_grads))
        _check_shapes(sizes, list(map(len, params)), len(scales), reduce)
        given = floats(
            list(chain.from_iterable(scaled_grads)), extended, lambda index: ("scaled_grads", *place(sizes, index))
        )
        size = np.array(sizes, dtype=np.intp)
        held = given if reduce is None else _reduced(given.reshape(len(size), -1), reduce)
        scale = np.broadcast_to(np.array([float(value) for value in scales]), len(size))
        unscaled, finite = held / np.repeat(scale, size), np.isfinite(held)
        if not np.isfinite(unscaled[finite]).all():
            raise _beyond("scale", "takes an unscaled gradient", "使还原后的梯度")
        return cls(
            size=size,
            held=held,
            unscaled=unscaled,
            param=floats(list(chain.from_iterable(params)), as_float, lambda index: ("params", *place(sizes, index))),
            scale=scale,
            before=_any_by_rank(~np.isfinite(given), size),
            after=_any_by_rank(~finite, size),
        )

    def step(self, flags: Flags, lr: float) -> Floats:
        """The parameters after SGD on the ranks without a flag."""
        stepping = np.repeat(~flags, self.size)
        after = np.where(stepping, self.param - lr * self.unscaled, self.param)
        if not np.isfinite(after).all():
            raise _beyond("lr", "takes a parameter", "使参数")
        return after

    def nested(self, values: Floats) -> list[list[float]] | None:
        """Rank by rank; None above MAX_LISTED_CELLS."""
        if max(len(values), len(self.size)) > MAX_LISTED_CELLS:
            return None
        return cut(values.tolist(), self.size.tolist())

    def equal(self, values: Floats) -> bool:
        """Whether all ranks hold the same values; for ranks of one length."""
        rows = values.reshape(len(self.size), -1)
        return bool((rows == rows[0]).all())


def _beyond(field: str, en: str, zh: str) -> InputError:
    return InputError(f"{en} out of float64", f"{zh}超出 float64 的范围", field=field, code="number_range")


def _check_shapes(sizes: list[int], param_sizes: list[int], scales: int, reduce: Reduction | None) -> None:
    """One scale, or one for each rank; parameters like gradients; a rectangle where ranks are reduced."""
    count = len(sizes)
    if sum(sizes) > MAX_CELLS:
        en, zh = f"have more than {MAX_CELLS:,} values", f"超过 {MAX_CELLS:,} 个值"
        raise InputError(en, zh, field="scaled_grads", code="too_long")
    if scales not in (1, count):
        en = f"has {scales} values: give one, or one for each of the {count} ranks"
        zh = f"有 {scales} 个值：应为一个，或 {count} 个 rank 各一个"
        raise InputError(en, zh, field="scale", code="shape_mismatch")
    if len(param_sizes) != count:
        en = f"have {len(param_sizes)} rows, but scaled_grads {count}: one for each rank"
        zh = f"有 {len(param_sizes)} 行，而 scaled_grads 有 {count} 行：每个 rank 一行"
        raise InputError(en, zh, field="params", code="shape_mismatch")
    for r, (size, param_size) in enumerate(zip(sizes, param_sizes, strict=True)):
        if param_size != size:
            en = f"of rank {r} have {param_size} values, but its scaled_grads {size}"
            zh = f"在 rank {r} 有 {param_size} 个值，而它的 scaled_grads 有 {size} 个"
            raise InputError(en, zh, field=("params", r), code="shape_mismatch")
        if reduce is not None and size != sizes[0]:
            en = f"of rank {r} have {size} values, rank 0 has {sizes[0]}: a reduction needs as many on every rank"
            zh = f"在 rank {r} 有 {size} 个值，rank 0 有 {sizes[0]} 个：归约要求各 rank 个数相同"
            raise InputError(en, zh, field=("scaled_grads", r), code="shape_mismatch")


def _reduced(rows: Floats, operation: Reduction) -> Floats:
    """What every rank holds after the reduction over ranks, laid end to end."""
    total = rows.sum(axis=0)
    if not np.isfinite(total[np.isfinite(rows).all(axis=0)]).all():
        raise _beyond("scaled_grads", "have a sum over ranks that goes", "在各 rank 上的和")
    return np.tile(total / len(rows) if operation == "mean" else total, len(rows))


def _any_by_rank(flags: Flags, size: NDArray[np.intp]) -> Flags:
    ranks = np.repeat(np.arange(len(size)), size)
    return np.bincount(ranks[flags], minlength=len(size)) > 0
