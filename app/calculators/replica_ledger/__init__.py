"""The ledger of an update window: what every token weighs, by the right rule and by the usual wrong ones.

Words and symbols: replica r of P data-parallel replicas, microstep k of K_r; `n` = n_rk the mass of a cell (a token
count or a sum of weights), `g` the gradient per unit of mass, `G` = n·g its sum, `loss` and `S` likewise;
N = Σ n_rk. The reference is the mean over the window,

    g* = Σ_rk G_rk / N          (undefined when N = 0: there is no objective, all replicas skip)

and a scheme (see `weighting`) is what an implementation computes in its place. The formulas follow from the definition
of a mean; that DDP averages over replicas is in the PyTorch documentation of DistributedDataParallel.
"""

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from math import isclose
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Discriminator, Field, Tag, model_validator

from samestep.app.calculators.replica_ledger.inputs import (
    Cell,
    Columns,
    assumed_gradients,
    completed,
    given_gradients,
    in_columns,
    window_of,
    without_gradients,
)
from samestep.app.calculators.replica_ledger.results import Assumed, CellRow, Result, Row, SchemeName, Spread, View
from samestep.app.calculators.replica_ledger.schemes import EmptyCell, Scheme
from samestep.app.calculators.replica_ledger.weighting import Added, Group, Step, Weights, alike, evaluate
from samestep.app.contract.errors import InputError
from samestep.app.contract.fields import JSON, NonNegative, OptionalRankRows, Real
from samestep.app.contract.forms import Form
from samestep.app.contract.limits import MAX_LISTED_CELLS, MAX_RANKS
from samestep.app.contract.models import Inputs as InputsBase, Query as QueryBase, Reason, chosen
from samestep.app.contract.numbers import replica_name
from samestep.app.contract.rows import Rows, numbers_in_json
from samestep.app.mathematics.window import REPLICA, Window, as_float, place_of

_HALF = Fraction(1, 2)


NAMED_SCHEMES: dict[str, Scheme] = {
    scheme.name: scheme
    for scheme in (
        Scheme(name="P_over_N_then_ddp_mean", denominator="global", multiplier="P"),
        Scheme(name="one_over_N_then_sum", denominator="global", reduction="sum"),
        Scheme(name="replica_mean_then_ddp_mean", denominator="replica"),
        Scheme(name="microstep_mean_div_K_then_ddp_mean", denominator="cell", accumulation_divisor="K_r"),
        Scheme(name="microstep_mean_summed_then_ddp_mean", denominator="cell"),
        Scheme(name="one_over_N_then_ddp_mean", denominator="global"),
        Scheme(name="P_over_N_then_sum", denominator="global", multiplier="P", reduction="sum"),
        Scheme(name="P_over_N_extra_div_K", denominator="global", multiplier="P", accumulation_divisor="K_r"),
    )
}


class Regularizer(InputsBase):
    """A term added once to the objective: its gradient and its value."""

    g: Real | list[Real]
    value: Real = Fraction(0)


class Inputs(InputsBase):
    """A window of any number of replicas and microsteps, and the schemes to compare with its mean.

    `microsteps[r][k]` is a cell; large windows may come as columns, `{"n": [[…]], "g": [[…]], "loss": [[…]]}`, there
    or in its place. `theta0` and `sgd_lr` ask for the parameter after one plain SGD step.
    """

    microsteps: Annotated[
        Annotated[list[list[Cell]], Field(min_length=1, max_length=MAX_RANKS), Tag("cells")]
        | Annotated[Columns, Tag("columns")],
        Discriminator(lambda value: "cells" if isinstance(value, list) else "columns"),
        JSON,
    ]
    schemes: Annotated[list[Scheme], JSON] = Field(default=list(NAMED_SCHEMES.values()), max_length=64)
    theta0: Annotated[Real | list[Real], Form("list", scalar=True)] | None = None
    sgd_lr: Real | None = None
    regularizer: Annotated[Regularizer, JSON] | None = None

    in_place: ClassVar[Mapping[str, type[InputsBase]]] = {"microsteps": Columns}

    @model_validator(mode="before")
    @classmethod
    def _columns_in_place(cls, body: Any) -> Any:
        """Accept the columns at the top of the body, in place of `microsteps`."""
        if not isinstance(body, dict) or "microsteps" in body or body.keys().isdisjoint(Columns.model_fields):
            return body
        columns = {name: body[name] for name in Columns.model_fields if name in body}
        return {name: value for name, value in body.items() if name not in columns} | {"microsteps": columns}

    @classmethod
    def laid_out(cls, body: dict[str, Any]) -> dict[str, Any]:
        """Cells of a number each as columns at the top of the body."""
        rest = {name: value for name, value in body.items() if name != "microsteps"}
        columns = in_columns(body.get("microsteps"))
        return body if columns is None else columns | rest


class Query(QueryBase):
    """The panel: two replicas of one microstep with the losses ½(θ − t)² per token, or any window as matrices."""

    a: NonNegative = Fraction(2)
    b: NonNegative = Fraction(8)
    target_a: Real = Fraction(2)
    target_b: Real = Fraction(-1)
    theta: Real = Fraction(0)
    lr: Real = Fraction(1, 10)
    scheme: SchemeName = "replica_mean_then_ddp_mean"
    empty_cell: EmptyCell = "undefined"
    counts: OptionalRankRows = None
    gradients: OptionalRankRows = None
    losses: OptionalRankRows = None

    def window(self) -> tuple[Window, list[Fraction]]:
        """The window that these fields describe, and its gradients per unit of mass, one a cell.

        InputError where the matrices do not fit together.
        """
        if self.counts is None:
            for name in ("gradients", "losses"):
                if getattr(self, name) is not None:
                    en, zh = f"are needed together with {name}", f"须与 {name} 一起给出"
                    raise InputError(en, zh, field="counts", code="missing")
            targets = self.target_a, self.target_b
            counts, gradients = [self.a, self.b], [self.theta - target for target in targets]
            return _per_unit((1, 1), counts, gradients, [g * g * _HALF for g in gradients])
        given = _assumed(_Same(self.counts)) if self.gradients is None else self.gradients
        return _window_of(_Same(self.counts), _Same(given), _Same(self.losses))

    @property
    def assumed(self) -> Assumed:
        """What was not given and is filled in."""
        return ("gradients",) if self.counts is not None and self.gradients is None else ()

    def inputs(self) -> Inputs:
        """The body that these fields stand for."""
        self.window()  # says what does not fit together, by the names of these fields
        if self.counts is None:
            per_token = [self.theta - target for target in (self.target_a, self.target_b)]
            counts, losses = [[self.a], [self.b]], [[g * g * _HALF] for g in per_token]
            columns: dict[str, Any] = {"n": counts, "g": [[g] for g in per_token], "loss": losses}
        else:
            columns = {"n": self.counts, "g": self.gradients, "loss": self.losses}
        microsteps = {name: numbers_in_json(rows) for name, rows in columns.items() if rows is not None}
        given: dict[str, Any] = {} if self.empty_cell == "undefined" else {"schemes": _schemes(self.empty_cell)}
        return Inputs(microsteps=Columns(**microsteps), theta0=self.theta, sgd_lr=self.lr, **given)


class _Same:
    """Rows that are equal only to themselves: comparing thousands of fractions costs more than using them."""

    __slots__ = ("rows",)

    def __init__(self, rows: Rows | None) -> None:
        self.rows = rows

    def __hash__(self) -> int:
        return id(self.rows)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.rows is self.rows


@lru_cache(maxsize=8)
def _assumed(counts: _Same) -> Rows:
    """Kept, so that the window of the same counts is known again."""
    assert counts.rows is not None
    return tuple(tuple(map(Fraction, row)) for row in assumed_gradients([len(row) for row in counts.rows]))


@lru_cache(maxsize=8)
def _window_of(counts: _Same, gradients: _Same, losses: _Same) -> tuple[Window, list[Fraction]]:
    """The window of matrices; kept while only other fields change. InputError where they do not fit together."""
    assert counts.rows is not None
    assert gradients.rows is not None
    sizes = tuple(map(len, counts.rows))
    for name, rows in {"counts": counts.rows, "gradients": gradients.rows, "losses": losses.rows}.items():
        if rows is not None and tuple(map(len, rows)) != sizes:
            en, zh = "need as many rows and values as counts", "的行数和每行个数须与 counts 相同"
            raise InputError(en, zh, field=name, code="shape_mismatch")
    for r, row in enumerate(counts.rows):
        if any(count.numerator < 0 for count in row):
            en, zh = f"row {r + 1} holds a negative count", f"第 {r + 1} 行有负数"
            raise InputError(en, zh, field="counts", code="greater_than_equal")
    given = None if losses.rows is None else _flat(losses.rows)
    return _per_unit(sizes, _flat(counts.rows), _flat(gradients.rows), given)


@lru_cache(maxsize=64)
def _named(sizes: tuple[int, ...], empty_cell: EmptyCell) -> tuple[Group, ...]:
    return alike(_schemes(empty_cell), Window.shaped(sizes))


def _schemes(empty_cell: EmptyCell) -> list[Scheme]:
    return [scheme.model_copy(update={"empty_cell": empty_cell}) for scheme in NAMED_SCHEMES.values()]


def compute(inputs: Inputs) -> Result:
    """Compare every scheme with the mean over the window; InputError where the body does not hold together."""
    return evaluate(*_read(inputs))[0].model_copy(update={"assumed": _filled_in(inputs)})


def _filled_in(inputs: Inputs) -> Assumed:
    return ("gradients",) if without_gradients(inputs.microsteps) else ()


def _read(inputs: Inputs) -> tuple[Window, tuple[Group, ...], Step | None, Added | None]:
    """What `evaluate` takes."""
    names = [scheme.name for scheme in inputs.schemes]
    for name in names:
        if names.count(name) > 1:
            en, zh = f"has two schemes called “{name}”", f"有两个方案同名“{name}”"
            raise InputError(en, zh, field="schemes", code="duplicate")
    window = window_of(completed(inputs.microsteps))
    return window, alike(inputs.schemes, window), _step_of(inputs, window), _added_of(inputs, window)


def present(inputs: Inputs, scheme: str | None = None) -> View:
    """What is shown of a body, with one of its schemes selected: the first, unless `scheme` names another."""
    window, groups, step, added = _read(inputs)
    selected = chosen([scheme.name for scheme in inputs.schemes], scheme)
    result, weighting = evaluate(window, groups, step, added)
    microsteps, result = completed(inputs.microsteps), result.model_copy(update={"assumed": _filled_in(inputs)})
    return _view(selected, window, lambda r: given_gradients(microsteps, r), step, result, weighting[selected])


def panel(query: Query) -> View:
    """The panel's state: the eight named schemes, and the chosen one replica by replica."""
    window, per_unit = query.window()
    step = Step(query.theta, query.lr)
    result, weighting = evaluate(window, _named(window.sizes, query.empty_cell), step, None)
    result = result.model_copy(update={"assumed": query.assumed})
    return _view(query.scheme, window, window.nested(per_unit).__getitem__, step, result, weighting[query.scheme])


def _view(
    selected: str,
    window: Window,
    per_unit: Callable[[int], Sequence[Any]],
    step: Step | None,
    result: Result,
    weight: Weights,
) -> View:
    """`per_unit` gives the gradients per unit of mass of a replica's cells, None where the body has only their sums."""
    current = None if weight.scale is None else weight.over_cells(window)
    shown, decision = result.schemes[selected], result.reference.decision
    return View(
        **dict(result),
        selected=selected,
        current=shown,
        rows=_rows(window, per_unit, current, weight.reason),
        cells=_cells(window, current),
        spread=_spread(window, current),
        decision="undefined" if decision == "update" and not shown.defined else decision,
        theta=as_float(step.theta) if step else None,
        lr=as_float(step.lr) if step else None,
    )


def _spread(window: Window, current: NDArray[np.float64] | None) -> Spread | None:
    """The heaviest and the lightest token; `current` holds the weight of a unit of mass, one a cell."""
    filled = np.flatnonzero(window.float_counts)
    if current is None or not len(filled):
        return None
    heaviest, lightest = (int(filled[pick(current[filled])]) for pick in (np.argmax, np.argmin))
    apart = not isclose(current[heaviest], current[lightest], rel_tol=1e-9)
    several = max(window.sizes) > 1
    names = [
        (replica_name(r), k if several else None) for r, k in (place_of(window.sizes, i) for i in (heaviest, lightest))
    ]
    with np.errstate(all="ignore"):
        times = float(current[heaviest] / current[lightest])
    return Spread(
        heaviest=names[0],
        lightest=names[1],
        times=1.0 if not apart else times if np.isfinite(times) else None,
        of_right=None if apart else float(current[heaviest] * float(window.total)),
    )


def _step_of(inputs: Inputs, window: Window) -> Step | None:
    if inputs.theta0 is None and inputs.sgd_lr is None:
        return None
    for name in ("theta0", "sgd_lr"):
        if getattr(inputs, name) is None:
            en, zh = "is needed for the step (with theta0 and sgd_lr)", "缺失：theta0 与 sgd_lr 须一起给出"
            raise InputError(en, zh, field=name, code="missing")
    return Step(_like_gradient(inputs.theta0, window, "theta0"), window.number(inputs.sgd_lr or 0))


def _added_of(inputs: Inputs, window: Window) -> Added | None:
    if inputs.regularizer is None:
        return None
    gradient = _like_gradient(inputs.regularizer.g, window, ("regularizer", "g"))
    return Added(gradient, window.number(inputs.regularizer.value))


def _like_gradient(value: Any, window: Window, field: str | tuple[str, ...]) -> Any:
    """A scalar, or a vector of the gradient's own length."""
    if not isinstance(value, list):
        return window.number(value)
    if window.gradient_sums.shape[1:] != (len(value),):
        raise InputError(
            "needs as many values as the gradient", "的长度须与梯度相同", field=field, code="shape_mismatch"
        )
    return window.numbers(value)


def _per_unit(
    sizes: tuple[int, ...], counts: list[Fraction], gradients: list[Fraction], losses: list[Fraction] | None
) -> tuple[Window, list[Fraction]]:
    """A window from values per unit of mass, and its gradients."""
    n, g = np.array(counts, dtype=object), np.array(gradients, dtype=object)
    return Window(sizes, n, n * g, None if losses is None else n * np.array(losses, dtype=object)), gradients


def _flat(rows: Rows) -> list[Fraction]:
    return [value for row in rows for value in row]


def _rows(
    window: Window,
    per_unit: Callable[[int], Sequence[Any]],
    current: NDArray[np.float64] | None,
    reason: Reason | None,
) -> list[Row]:
    """One row a replica. `current` holds the weight of a unit of mass, one a cell."""
    counts = window.replica_counts.astype(float)
    right = (counts / float(window.total)).tolist() if window.total else None
    given = None if current is None else window.by_replica(current * window.float_counts).tolist()
    sums = window.sums("gradient", REPLICA)
    if not window.total:
        reason = "zero_count"
    return [
        Row(
            name=replica_name(r),
            n=n,
            gradient=as_float(gradient),
            gradient_sum=as_float(sums[r]),
            weight=right[r] if right else None,
            current_weight=given[r] if given else None,
            reason="zero_count" if gradient is None and reason is None else reason,
        )
        for r, n in enumerate(counts.tolist())
        for gradient in [sums[r] / window.replica_counts[r] if n else _shared(per_unit(r))]
    ]


def _shared(per_unit: Sequence[Any]) -> Any:
    """What an empty replica's gradient per unit is: the value that all its cells share, None where there is none."""
    return per_unit[0] if per_unit and all(value == per_unit[0] for value in per_unit) else None


def _cells(window: Window, current: NDArray[np.float64] | None) -> list[CellRow] | None:
    """One entry a cell; None for windows too large to list. `current` holds the weight of a unit of mass."""
    if len(window.counts) > MAX_LISTED_CELLS:
        return None
    right = as_float(1 / window.total) if window.total else None
    given = None if current is None else as_float(current)
    counts = window.float_counts.tolist()
    places = [(r, k) for r, size in enumerate(window.sizes) for k in range(size)]
    return [
        CellRow(
            replica=r,
            microstep=k,
            n=counts[i],
            token_weight=right,
            current_token_weight=given[i] if given else None,
        )
        for i, (r, k) in enumerate(places)
    ]
