"""Which axes of a device mesh add a gradient, what divides it, which add its squares, and where labels are counted.

A model on a mesh of dp × fsdp × cp × tp × pp ranks has five classes of parameters, see `mesh` for the axes and for the
divisor R: `dense` (cut along tp), `norm` (whole on every tp rank; under sequence parallelism each has seen a slice of
the sequence, so that its gradient is one part of a sum), `replicated` (whole, and the same gradient on every tp rank),
`expert` (on edp data ranks, which receive the tokens of all D), `tied` (on the first and the last stage).

    NAME_right                    the sum over its ranks, divided by R
    dense_divided_by_…            the sum over D, by D or dp·fsdp;  dense_summed: by nothing
    dense_context_not_reduced     the sum over dp and fsdp alone, by R: cp ranks keep different gradients
    norm_not_reduced_over_tp      each tp rank keeps its part;  norm_averaged_over_tp, norm_summed_over_tp
    expert_divided_by_its_own_group   the sum over edp, divided by edp
    tied_not_summed, tied_averaged    each end keeps its own gradient, or both take the mean

`factor` supposes equal contributions, `values` takes those given, `norms` the squares of whole classes (equal shards),
`labels` the counts of the data ranks. All exact; `values` is one number a rank where ranks are left with different
ones.
"""

import math
from fractions import Fraction
from typing import Any, cast

from samestep.app.calculators.mesh_ledger.inputs import Inputs, Query, SchemeName
from samestep.app.calculators.mesh_ledger.mesh import CLASSES, SQUARE_AXES, Mesh, factors
from samestep.app.calculators.mesh_ledger.results import (
    Grid,
    LabelCount,
    ParameterClass,
    Result,
    SchemeResult,
    View,
)
from samestep.app.calculators.mesh_ledger.sums import (
    LabelPlace,
    dense_values,
    expert_values,
    label_counts,
    norm_values,
    replicated_values,
    squared_norms,
)
from samestep.app.contract.models import selection
from samestep.app.contract.numbers import fraction_text

__all__ = ["Inputs", "Query", "Result", "View", "compute", "present"]

ROWS_SHOWN, COLUMNS_SHOWN, TP_SHOWN = 12, 16, 8

_VALUES = {"dense": dense_values, "norm": norm_values, "replicated": replicated_values, "expert": expert_values}


def compute(inputs: Inputs) -> Result:
    """The ledger of a mesh, and what it makes of the numbers that are given."""
    mesh = inputs.mesh
    return Result(
        data_ranks=mesh.data_ranks,
        expert_data_ranks=mesh.expert_data_ranks,
        world=mesh.world,
        classes={
            name: ParameterClass(
                sum_axes=list(mesh.sum_axes(name)),
                ranks_summed=mesh.ranks_summed(name),
                divide_by=mesh.divisor,
                square_axes=list(SQUARE_AXES[name]),
            )
            for name in CLASSES
        },
        schemes=_schemes(mesh),
        **_values(inputs),
        **_norms(inputs),
        labels=None if inputs.labels is None else _labels(inputs.labels, mesh),
    )


def _schemes(mesh: Mesh) -> dict[SchemeName, SchemeResult]:
    return {
        cast(SchemeName, name): SchemeResult(
            class_=kind,
            defined=True,
            reason=None,
            factor=float(factor),
            factor_exact=fraction_text(factor),
            ratio_to_reference=float(factor),
            matches_reference=factor == 1 and not differ,
            copies_differ=differ,
        )
        for name, (kind, factor, differ) in factors(mesh).items()
    }


def _values(inputs: Inputs) -> dict[str, Any]:
    given = inputs.contributions
    if given is None:
        return {"values": None, "values_exact": None}
    found: dict[str, Fraction | list[Fraction]] = {}
    for name, values in _VALUES.items():
        contributions = getattr(given, name)
        if contributions is not None:
            found |= values(contributions, inputs.mesh)
    return {
        "values": {name: _each(value, float) for name, value in found.items()},
        "values_exact": {name: _each(value, fraction_text) for name, value in found.items()},
    }


def _each(value: Fraction | list[Fraction], read: Any) -> Any:
    return list(map(read, value)) if isinstance(value, list) else read(value)


def _norms(inputs: Inputs) -> dict[str, Any]:
    if inputs.squares is None:
        return {"norms": None, "norms_squared": None, "norms_squared_exact": None}
    squares = squared_norms({name: getattr(inputs.squares, name) for name in CLASSES}, inputs.mesh)
    return {
        "norms": {name: math.sqrt(square) for name, square in squares.items()},
        "norms_squared": list(map(float, squares.values())),
        "norms_squared_exact": list(map(fraction_text, squares.values())),
    }


def _labels(labels: tuple[int, ...], mesh: Mesh) -> dict[LabelPlace, LabelCount]:
    counts = label_counts(labels, mesh)
    right = counts["right"]
    return {
        name: LabelCount(
            count=count,
            count_exact=str(count),
            gradient_factor=right / count if count else None,
            gradient_factor_exact=fraction_text(Fraction(right, count)) if count else None,
            reason=None if count else "zero_count",
        )
        for name, count in counts.items()
    }


def present(inputs: Inputs, scheme: str | None = None) -> View:
    """What is shown of a body, with one of the schemes selected: the first, unless `scheme` names another."""
    result, mesh = compute(inputs), inputs.mesh
    rows, tp = min(mesh.data_ranks, ROWS_SHOWN), min(mesh.tp, TP_SHOWN)
    fit = COLUMNS_SHOWN // tp
    stages = list(range(mesh.pp)) if mesh.pp <= fit else [*range(fit - 1), mesh.pp - 1]
    places = [(stage, t) for stage in stages for t in range(tp)]
    return View(
        **dict(result),
        **selection(result.schemes, scheme),
        grids={
            name: Grid(kinds=[[mesh.kind(name, row, *place) for place in places] for row in range(rows)])
            for name in CLASSES
        },
        stages_shown=stages,
        tp_shown=tp,
        whole_mesh_shown=rows * len(places) == mesh.world,
        axes={axis: getattr(mesh, axis) for axis in ("dp", "fsdp", "cp", "tp", "pp", "ep")},
        divisor=mesh.divisor,
    )
