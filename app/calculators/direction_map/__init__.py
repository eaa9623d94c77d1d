"""The map of all counts (a, b): where the mean of replica means keeps the direction, and where it turns it round.

Words and symbols: replicas A and B hold a and b valid tokens, the loss per token is ½(θ − t)² with the targets t_A and
t_B, so that the gradients per token are g_A = θ − t_A and g_B = θ − t_B. The right gradient is the mean over all
tokens, the implementation in question averages each replica and then the replicas (see `grid`). The formulas
follow from the definition of a mean; single states of the same two replicas are those of `replica_ledger`.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Annotated, get_args

from pydantic import Field, model_validator

from samestep.app.calculators.direction_map.grid import Direction, Kind, Magnitude, direction_map
from samestep.app.contract import models
from samestep.app.contract.errors import InputError
from samestep.app.contract.fields import Real, whole_number
from samestep.app.contract.numbers import fraction_text

MAX_SIZE = 64
_NEARBY = 3
"""So many counts b on either side of the marked one are listed."""
_LABELLED = 40
"""An area of fewer cells has no room for its name."""


Count = Annotated[int, whole_number(0, MAX_SIZE)]
Size = Annotated[int, whole_number(1, MAX_SIZE)]


class Inputs(models.Inputs):
    """The losses of the two replicas, the marked counts, and how far the map goes."""

    a: Count = 2
    b: Count = 8
    target_a: Real = Fraction(2)
    target_b: Real = Fraction(-1)
    theta: Real = Fraction(0)
    size: Size = 32

    @model_validator(mode="after")
    def _inside(self) -> "Inputs":
        for name in ("a", "b"):
            if getattr(self, name) > self.size:
                en, zh = f"lies beyond the map, which ends at {self.size}", f"超出了图的范围（到 {self.size} 为止）"
                raise InputError(en, zh, field=name, code="out_of_range")
        return self


class Query(Inputs, models.Query):
    """The panel has the fields of the body."""


class Point(models.Result):
    """One pair of counts: both gradients and their ratio; `reason` says why a null is null."""

    a: int
    b: int
    kind: Kind
    reference: float | None
    replica_mean: float | None
    ratio: float | None
    ratio_exact: str | None
    reason: models.Reason | None


class Run(models.Result):
    """Neighbouring counts b, from `start` to `stop` inclusive, at one a."""

    a: int
    start: int
    stop: int


class Area(models.Result):
    """The cells of one kind and magnitude, as runs."""

    kind: Kind
    magnitude: Magnitude | None
    runs: list[Run]


class Label(models.Result):
    """A cell in the middle of all cells of one kind."""

    kind: Kind
    a: int
    b: int


class Result(models.Result):
    """`kinds[a][b]` and `ratios[a][b]` are the map; `cells` counts its kinds, `same` the cells of ratio 1.

    `flipped_b` are the first and last count b, at the marked a, at which the sign is turned; null where none is.
    `turning_slope` is the b/a at which the reference is 0, null where there is none above 0.
    """

    point: Point
    nearby: list[Point]
    cells: dict[Kind, int]
    same: int
    flipped_b: tuple[int, int] | None
    turning_slope: float | None
    turning_slope_exact: str | None
    kinds: list[list[Kind]]
    ratios: list[list[float | None]]
    areas: list[Area] = Field(description="the map for drawing: runs of equal kind and magnitude")
    labels: list[Label]

    def tables(self) -> list[models.Table]:
        """The map, one row a cell."""
        rows = [(a, b, kind, self.ratios[a][b]) for a, column in enumerate(self.kinds) for b, kind in enumerate(column)]
        return [models.Table(header=("a", "b", "kind", "ratio"), rows=rows)]


@dataclass(frozen=True)
class _Map:
    """What depends on the losses alone: a dragged count finds it again."""

    grid: list[list[Direction]]
    cells: dict[Kind, int]
    same: int
    kinds: list[list[Kind]]
    ratios: list[list[float | None]]
    areas: list[Area]
    labels: list[Label]


@lru_cache(maxsize=32)
def _map(target_a: Fraction, target_b: Fraction, theta: Fraction, size: int) -> _Map:
    grid = direction_map(target_a, target_b, theta, size)
    kinds = [[cell.kind for cell in line] for line in grid]
    return _Map(
        grid=grid,
        cells={kind: sum(line.count(kind) for line in kinds) for kind in get_args(Kind)},
        same=sum(cell.kind == "agree" and cell.magnitude == "same" for line in grid for cell in line),
        kinds=kinds,
        ratios=[[None if cell.ratio is None else float(cell.ratio) for cell in line] for line in grid],
        areas=_areas(grid),
        labels=[label for kind in get_args(Kind) if (label := _label(kind, kinds))],
    )


def compute(inputs: Inputs) -> Result:
    """The map, the marked point and its neighbours; InputError where a gradient or ratio leaves float64."""
    found = _map(inputs.target_a, inputs.target_b, inputs.theta, inputs.size)
    a, column = inputs.a, found.grid[inputs.a]
    flipped = [b for b, cell in enumerate(column) if cell.kind == "flipped"]
    slope = _slope(inputs.theta - inputs.target_a, inputs.theta - inputs.target_b)
    first, last = max(0, inputs.b - _NEARBY), min(inputs.size, inputs.b + _NEARBY)
    return Result(
        point=_point(a, inputs.b, column[inputs.b]),
        nearby=[_point(a, b, column[b]) for b in range(first, last + 1)],
        cells=found.cells,
        same=found.same,
        flipped_b=(flipped[0], flipped[-1]) if flipped else None,
        turning_slope=None if slope is None else float(slope),
        turning_slope_exact=None if slope is None else fraction_text(slope),
        kinds=found.kinds,
        ratios=found.ratios,
        areas=found.areas,
        labels=found.labels,
    )


def _slope(gradient_a: Fraction, gradient_b: Fraction) -> Fraction | None:
    """The b/a > 0 at which a·g_A + b·g_B = 0."""
    return -gradient_a / gradient_b if gradient_a * gradient_b < 0 else None


def _point(a: int, b: int, cell: Direction) -> Point:
    reasons: dict[Kind, models.Reason] = {"undefined": "empty_cell", "zero_reference": "zero_reference"}
    return Point(
        a=a,
        b=b,
        kind=cell.kind,
        reference=None if cell.reference is None else float(cell.reference),
        replica_mean=None if cell.replica_mean is None else float(cell.replica_mean),
        ratio=None if cell.ratio is None else float(cell.ratio),
        ratio_exact=None if cell.ratio is None else fraction_text(cell.ratio),
        reason="zero_count" if cell.reference is None else reasons.get(cell.kind),
    )


def _areas(grid: list[list[Direction]]) -> list[Area]:
    areas: dict[tuple[Kind, Magnitude | None], list[Run]] = {}
    for a, column in enumerate(grid):
        start = 0
        for b, cell in enumerate(column):
            after = column[b + 1] if b + 1 < len(column) else None
            if after is None or (after.kind, after.magnitude) != (cell.kind, cell.magnitude):
                areas.setdefault((cell.kind, cell.magnitude), []).append(Run(a=a, start=start, stop=b))
                start = b + 1
    return [Area(kind=kind, magnitude=magnitude, runs=runs) for (kind, magnitude), runs in areas.items()]


def _label(kind: Kind, kinds: list[list[Kind]]) -> Label | None:
    """Where the name of a kind can stand: the cell at the mean of its cells, if that is one of them."""
    cells = [(a, b) for a, column in enumerate(kinds) for b, found in enumerate(column) if found == kind]
    if len(cells) < _LABELLED:
        return None
    a, b = _mean(a for a, _ in cells), _mean(b for _, b in cells)
    return Label(kind=kind, a=a, b=b) if kinds[a][b] == kind else None


def _mean(values: Iterable[int]) -> int:
    listed = list(values)
    return round(sum(listed) / len(listed))
