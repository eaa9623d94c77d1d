"""The numbers of a body as evidence: checked against each other, in arrays, the right values filled in where they
follow from what is known of ranks and cells."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeVar

import numpy as np

from samestep.app.calculators.ratio_fingerprint.hypotheses import Evidence, distance
from samestep.app.calculators.ratio_fingerprint.window_faults import Counts, Units, right_values
from samestep.app.contract.arrays import Floats
from samestep.app.contract.errors import InputError
from samestep.app.contract.limits import MAX_CELLS

MAX_ENTRIES = 4_096
MAX_TOTAL = 1e15
_WHOLE = 1e-6
_CONSISTENT = 1e-3

_T = TypeVar("_T")
Path = tuple[str | int, ...]
Entries = Sequence[Fraction] | None


@dataclass(frozen=True)
class Channel:
    """What is known of a rank or cell: gradient entries and loss, either may be missing."""

    gradient: Entries
    loss: Fraction | None


@dataclass(frozen=True)
class Numbers:
    """A body's numbers as typed."""

    ranks: int
    microsteps: int
    counts: Sequence[Sequence[Fraction]] | None
    samples: Sequence[Sequence[int]] | None
    units: Sequence[Channel]
    units_path: str
    reference: Channel
    reference_norm: Fraction | None
    replicated_norm: Fraction | None
    observed: Channel
    observed_norm: Fraction | None


def evidence_of(numbers: Numbers) -> tuple[Evidence, bool | None]:
    """The evidence, and whether the reference is what ranks or cells add up to (None where that is not known).

    InputError names what does not fit together.
    """
    window = Counts(
        numbers.ranks,
        numbers.microsteps,
        _grid(numbers.counts, "counts", numbers),
        _grid(numbers.samples, "samples", numbers),
    )
    if window.samples is not None and (window.counts is None or window.samples.shape != window.counts.shape):
        raise InputError("need the shape of counts", "的形状须与 counts 相同", field="samples", code="shape_mismatch")
    units = _units(numbers)
    summed_gradient, summed_loss = right_values(window, units)
    gradient = _entries(numbers.reference.gradient, ("reference", "gradient"))
    loss = None if numbers.reference.loss is None else float(numbers.reference.loss)
    if gradient is not None and units.gradients is not None and units.gradients.shape[1] != len(gradient):
        en, zh = "need as many entries as reference.gradient", "的个数须与 reference.gradient 相同"
        raise InputError(en, zh, field=("reference", numbers.units_path), code="shape_mismatch")
    consistent = _consistent(gradient, summed_gradient, loss, summed_loss)
    gradient, loss = summed_gradient if gradient is None else gradient, summed_loss if loss is None else loss
    seen_gradient = _pair(gradient, _entries(numbers.observed.gradient, ("observed", "gradient")), "gradient")
    if seen_gradient is not None and len(seen_gradient[0]) != len(seen_gradient[1]):
        en, zh = "needs as many entries as the reference", "的个数须与参考相同"
        raise InputError(en, zh, field=("observed", "gradient"), code="shape_mismatch")
    seen_loss = _pair(loss, None if numbers.observed.loss is None else float(numbers.observed.loss), "loss")
    norm = None if numbers.reference_norm is None else float(numbers.reference_norm)
    observed_norm = None if numbers.observed_norm is None else float(numbers.observed_norm)
    seen_norm = _pair(norm, observed_norm, "gradient_norm")
    if seen_gradient is None and seen_norm is None and seen_loss is None:
        en, zh = "needs a loss, a gradient norm or gradient entries", "至少要有损失、梯度范数或梯度分量之一"
        raise InputError(en, zh, field="observed", code="missing")
    length = None if gradient is None else float(np.linalg.norm(gradient))
    whole = length is not None and (norm is None or abs(length - norm) <= _WHOLE * norm)
    replicated = None if numbers.replicated_norm is None else float(numbers.replicated_norm)
    if replicated is not None and norm is not None and replicated > norm * (1 + _WHOLE):
        en, zh = "cannot be larger than gradient_norm", "不能大于 gradient_norm"
        raise InputError(en, zh, field=("reference", "replicated_norm"), code="less_than_equal")
    return Evidence(
        window=window,
        units=units,
        seen_loss=seen_loss,
        seen_norm=seen_norm,
        seen_gradient=seen_gradient,
        gradient=gradient,
        loss=loss,
        whole=whole,
        replicated=replicated,
        rounding=_rounding(numbers),
    ), consistent


def _rounding(numbers: Numbers) -> float:
    """The relative error that half a unit in the last digit of the compared numbers makes, of the coarsest pair."""
    pairs: list[tuple[Entries, Entries]] = [
        (numbers.reference.gradient, numbers.observed.gradient),
        (_one(numbers.reference_norm), _one(numbers.observed_norm)),
    ]
    if not any(observed for _, observed in pairs):
        pairs = [(_one(numbers.reference.loss), _one(numbers.observed.loss))]
    return max(_rounding_of(reference or ()) + _rounding_of(observed) for reference, observed in pairs if observed)


def _one(value: Fraction | None) -> Entries:
    return None if value is None else (value,)


def _rounding_of(values: Sequence[Fraction]) -> float:
    size = math.hypot(*map(float, values))
    return math.hypot(*map(_half_unit, values)) / size if size else 0.0


def _half_unit(value: Fraction) -> float:
    """Half a unit in the last decimal of a number as typed; 0 for a fraction such as 1/3, which is exact."""
    below, decimals = value.denominator, 0
    while below % 10 == 0:
        below, decimals = below // 10, decimals + 1
    for prime in (2, 5):
        while below % prime == 0:
            below, decimals = below // prime, decimals + 1
    return 0.5 * 10.0**-decimals if below == 1 else 0.0


def _pair(reference: _T | None, observed: _T | None, name: str) -> tuple[_T, _T] | None:
    """Both values, None where nothing was observed; InputError where there is nothing to compare with."""
    if observed is None:
        return None
    if reference is None:
        en, zh = f"is needed to compare with observed.{name}", f"缺失：要与 observed.{name} 比较"
        raise InputError(en, zh, field=("reference", name), code="missing")
    return reference, observed


def _entries(values: Entries, path: Path) -> Floats | None:
    if values is None:
        return None
    if not 0 < len(values) <= MAX_ENTRIES:
        en, zh = f"needs 1 to {MAX_ENTRIES:,} entries", f"应有 1 到 {MAX_ENTRIES:,} 个分量"
        raise InputError(en, zh, field=path, code="too_long" if values else "too_short")
    return np.array([float(value) for value in values])


def _grid(rows: Sequence[Sequence[Fraction | int]] | None, name: str, numbers: Numbers) -> Floats | None:
    """(P, K), or (P, 1) where only totals of the ranks are given."""
    if rows is None:
        return None
    widths = {len(row) for row in rows}
    if len(rows) != numbers.ranks or widths not in ({numbers.microsteps}, {1}):
        en = f"need P = {numbers.ranks} rows of K = {numbers.microsteps} values, or of one (the rank’s total)"
        zh = f"应有 P = {numbers.ranks} 行，每行 K = {numbers.microsteps} 个值，或每行一个（该 rank 的总数）"
        raise InputError(en, zh, field=name, code="shape_mismatch")
    if numbers.ranks * numbers.microsteps > MAX_CELLS:
        raise InputError(f"have more than {MAX_CELLS:,} cells", f"超过 {MAX_CELLS:,} 格", field=name, code="too_long")
    grid = np.array([[float(value) for value in row] for row in rows])
    if grid.sum() > MAX_TOTAL:
        raise InputError("add up to more than 1e15", "之和超过 1e15", field=name, code="number_range")
    return grid


def _units(numbers: Numbers) -> Units:
    """What is known of ranks or cells, as arrays; an empty one may be left out."""
    if not numbers.units:
        return Units(None, None)
    if sum(len(unit.gradient or ()) for unit in numbers.units) > MAX_CELLS:
        en, zh = f"have more than {MAX_CELLS:,} entries", f"的分量超过 {MAX_CELLS:,} 个"
        raise InputError(en, zh, field=("reference", numbers.units_path), code="too_long")
    empty = _empty(numbers)
    gradients = _column([unit.gradient for unit in numbers.units], empty, "gradient", numbers)
    losses = _column([None if unit.loss is None else (unit.loss,) for unit in numbers.units], empty, "loss", numbers)
    return Units(gradients, None if losses is None else losses[:, 0])


def _empty(numbers: Numbers) -> list[bool]:
    """Whether a rank or cell has the count 0."""
    if numbers.counts is None:
        return [False] * len(numbers.units)
    if numbers.units_path == "per_rank":
        return [not any(row) for row in numbers.counts]
    flat = [count for row in numbers.counts for count in row]
    return [not count for count in flat] if len(flat) == len(numbers.units) else [False] * len(numbers.units)


def _column(values: Sequence[Entries], empty: Sequence[bool], name: str, numbers: Numbers) -> Floats | None:
    width = next((len(value) for value in values if value), 0)
    if not width:
        return None
    rows = []
    for place, (value, without) in enumerate(zip(values, empty, strict=True)):
        path: Path = ("reference", numbers.units_path, *_place(place, numbers), name)
        if value is None and not without:
            raise InputError("is missing", "缺失", field=path, code="missing")
        if value is not None and len(value) != width:
            en, zh = "all gradients need as many entries as the first", "所有梯度的分量数须与第一个相同"
            raise InputError(en, zh, field=path, code="shape_mismatch")
        rows.append([0.0] * width if value is None else [float(entry) for entry in value])
    return np.array(rows)


def _place(index: int, numbers: Numbers) -> tuple[int, ...]:
    return (index,) if numbers.units_path == "per_rank" else divmod(index, numbers.microsteps)


def _consistent(
    gradient: Floats | None, summed_gradient: Floats | None, loss: float | None, summed_loss: float | None
) -> bool | None:
    distances = []
    if gradient is not None and summed_gradient is not None:
        distances.append(distance(gradient, summed_gradient))
    if loss is not None and summed_loss is not None:
        distances.append(distance(np.array([loss]), np.array([summed_loss])))
    return max(distances) <= _CONSISTENT if distances else None
