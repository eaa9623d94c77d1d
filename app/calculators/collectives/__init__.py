"""What every rank holds after a collective, what it costs, and what its backward is, on paper and in PyTorch.

Words and symbols: P ranks, x_r the input of rank r (a row of `values`, n elements), y_r its output, u_r = dL_r/dy_r
the gradient that arrives at the output (a row of `output_grads`, ones by default), L = L_1 + … + L_P. Slot s of a row
is its s-th part when it is cut into P equal ones.

    all_reduce       y_r = x_1 ⊕ … ⊕ x_P                      reduce_scatter   y_r = slot r of x_1 ⊕ … ⊕ x_P
    all_gather       y_r = (x_1, …, x_P)                      broadcast        y_r = x_root
    all_to_all       slot s of y_r = slot r of x_s            ⊕: sum, avg, max, min, product, element by element

The gradient with respect to x_r, by five ways:

    adjoint        dL/dx_r, the derivative of the sum of all ranks' losses: every rank that used x_r contributes
    functional     `torch.distributed._functional_collectives` (differentiable by default)
    nn_functional  `torch.distributed.nn.functional` (deprecated in 2.13)
    plain          `torch.distributed.all_reduce`, `.all_gather`, … : written in place or into given tensors
    local          dL_r/dx_r: what this rank's own loss alone demands, nothing communicated

The derivative of a maximum or minimum that several ranks hold is split evenly between them, as `torch.amax` does. The
middle three ways state what torch 2.13.0 does on Gloo, measured with 2 and 3 processes (tests of this calculator; NCCL
has not been measured): `functional` is the adjoint for sums, gathers and exchanges, raises a RuntimeError for any
reduce op but sum, and hands broadcast's gradient through unchanged on every rank (UserWarning). `nn_functional` reduces
the gradients of all_reduce by the same op as the values: right for sum and avg, wrong for max, min, product; that of
reduce_scatter gathers the gradients whatever the op (avg: P times the adjoint). `plain` leaves no gradient after
all_gather and all_to_all, without a warning, and elsewhere only u_r itself (avg: u_r / P), reduce_scatter's in slot r.

Bytes: see `traffic`; n elements of `dtype` per rank, or `buffer_elements` of them for a buffer of another size.
Values are float64 whatever the dtype. Shapes: rows of one length; P divides it for reduce_scatter and all_to_all.
"""

from typing import Annotated, Literal

import numpy as np
from pydantic import Field, model_validator

from samestep.app.calculators.collectives import traffic
from samestep.app.calculators.collectives.exchange import (
    REDUCING,
    WAYS,
    Collective,
    ReduceOp,
    WayName,
    WayReason,
    adjoint,
)
from samestep.app.calculators.collectives.traffic import Op
from samestep.app.contract.arrays import Floats, Written, rectangle
from samestep.app.contract.errors import InputError
from samestep.app.contract.fields import OptionalRankRows, OrBlank, RankRows, RawMatrix, whole_number
from samestep.app.contract.limits import MAX_CELLS, MAX_LISTED_CELLS, MAX_RANKS
from samestep.app.contract.models import Inputs as InputsBase, Query as QueryBase, Result as ResultBase, Table, chosen
from samestep.app.mathematics.element_size import BYTES, Dtype

AlgorithmName = Literal["ring", "tree", "pairwise"]

MAX_ELEMENTS = 10**15
SLOTTED: tuple[Op, ...] = ("reduce_scatter", "all_to_all")

_SAME = 1e-12
"""Gradients this near, relative to the largest entry, count as the same."""

Rank = Annotated[int, whole_number(0, MAX_RANKS - 1)]
Elements = Annotated[int, whole_number(1, MAX_ELEMENTS)]


class Inputs(InputsBase):
    """What every rank brings, and the gradients that arrive at the outputs (ones if not given).

    `reduce` matters only to all_reduce and reduce_scatter, `root` only to broadcast. `buffer_elements` is the number of
    elements per rank that the bytes are counted for; the length of the rows if not given.
    """

    op: Op
    reduce: ReduceOp = "sum"
    values: RawMatrix = Field(min_length=1, max_length=MAX_RANKS, examples=[[[1, 2], [3, 5]]])
    root: Rank = 0
    output_grads: RawMatrix | None = Field(default=None, min_length=1, max_length=MAX_RANKS)
    dtype: Dtype = "float32"
    buffer_elements: Elements | None = None

    @model_validator(mode="after")
    def _fits(self) -> "Inputs":
        ranks = len(self.values)
        if self.op == "broadcast" and self.root >= ranks:
            en, zh = (
                f"is {self.root}, but the ranks are 0 to {ranks - 1}",
                f"为 {self.root}，而 rank 为 0 至 {ranks - 1}",
            )
            raise InputError(en, zh, field="root", code="no_such_rank")
        if self.op in SLOTTED and self.buffer_elements is not None and self.buffer_elements % ranks:
            raise _not_divisible("buffer_elements", self.buffer_elements, ranks)
        return self


class Query(QueryBase):
    """The panel: one row per rank."""

    op: Op = "all_reduce"
    reduce: ReduceOp = "sum"
    values: RankRows = Field(default="1,2;3,5", validate_default=True)
    root: Rank = 0
    output_grads: OptionalRankRows = None
    dtype: Dtype = "float32"
    buffer_elements: Annotated[Elements | None, OrBlank] = None
    scheme: WayName = "plain"

    def inputs(self) -> Inputs:
        """The body that these fields stand for."""
        rows: dict[str, list[list[Written]]] = {}
        for name in ("values", "output_grads"):
            value = getattr(self, name)
            if value is not None:
                rows[name] = [[float(cell) for cell in row] for row in value]
        return Inputs(
            op=self.op,
            reduce=self.reduce,
            values=rows["values"],
            root=self.root,
            output_grads=rows.get("output_grads"),
            dtype=self.dtype,
            buffer_elements=self.buffer_elements,
        )


class WayResult(ResultBase):
    """The gradient that arrives at the inputs, one row a rank, and how it compares with the adjoint.

    Where there is none, `defined` is false, and `reason` says why: `no_gradient` (autograd recorded nothing), `raises`
    (the backward raises a RuntimeError). `ratio_to_adjoint` is given where one factor explains the difference.
    `gradient` is null above MAX_LISTED_CELLS cells, too.
    """

    defined: bool
    reason: WayReason | None
    gradient: list[list[float]] | None
    matches_adjoint: bool | None
    ratio_to_adjoint: float | None
    max_abs_difference: float | None


class Traffic(ResultBase):
    """The bytes of one algorithm: sent by each rank, by the busiest one, and by all; `per_rank` is null above
    MAX_LISTED_CELLS ranks. The formulas are explained at `_FORMULAS`, n is `buffer_bytes`.
    """

    steps: int
    per_rank: list[int] | None
    busiest_rank: int
    total: int
    rank_formula: str
    total_formula: str


class Result(ResultBase):
    """Every rank's output, the five backwards, and the bytes by algorithm.

    `outputs_agree` says whether all ranks end up with the same; `ties` whether a maximum or minimum is held by more
    than one rank (its derivative is then a convention). Lists are null above MAX_LISTED_CELLS cells.
    """

    op: Op
    reduce: ReduceOp | None
    ranks: int
    input_elements: int
    output_elements: int
    outputs: list[list[float]] | None
    outputs_agree: bool
    ties: bool
    schemes: dict[WayName, WayResult]
    element_bytes: int
    buffer_elements: int
    buffer_bytes: int
    traffic: dict[AlgorithmName, Traffic]

    def tables(self) -> list[Table]:
        """The outputs and gradients, one row a rank and element; then the algorithms."""
        tables = [Table(header=("rank", "element", "output"), rows=list(_cells(self.outputs)))]
        for name, way in self.schemes.items():
            tables.append(Table(header=("rank", "element", f"gradient_{name}"), rows=list(_cells(way.gradient))))
        header = ("algorithm", "steps", "busiest_rank", "total", "rank_formula", "total_formula")
        costs = [(name, *(getattr(cost, column) for column in header[1:])) for name, cost in self.traffic.items()]
        return [*tables, Table(header=header, rows=costs)]


class Row(ResultBase):
    """One rank: what it brings, gets, receives as gradients, and which gradients come back, right and as chosen."""

    rank: int
    input: list[float]
    output: list[float]
    output_grad: list[float]
    adjoint: list[float]
    gradient: list[float] | None
    reason: WayReason | None


class View(Result):
    """What the panel shows: the selected way, and one row a rank."""

    selected: WayName
    current: WayResult
    rows: list[Row] | None
    root: int


def _cells(rows: list[list[float]] | None) -> list[tuple[int, int, float]]:
    return [(r, i, value) for r, row in enumerate(rows or []) for i, value in enumerate(row)]


def _not_divisible(field: str, length: int, ranks: int) -> InputError:
    en = f"have {length} elements per rank, which {ranks} ranks cannot cut into equal parts"
    zh = f"每个 rank 有 {length} 个元素，不能等分给 {ranks} 个 rank"
    return InputError(en, zh, field=field, code="not_divisible")


def _way(found: Floats | WayReason, right: Floats) -> WayResult:
    if isinstance(found, str):
        nothing = dict.fromkeys(("gradient", "matches_adjoint", "ratio_to_adjoint", "max_abs_difference"))
        return WayResult(defined=False, reason=found, **nothing)
    if not np.isfinite(found).all():
        en, zh = "take a gradient out of float64", "使梯度超出 float64 的范围"
        raise InputError(en, zh, field="output_grads", code="number_range")
    difference = float(np.abs(found - right).max())
    return WayResult(
        defined=True,
        reason=None,
        gradient=_listed(found),
        matches_adjoint=difference <= _SAME * max(float(np.abs(right).max()), float(np.abs(found).max())),
        ratio_to_adjoint=_ratio(found, right),
        max_abs_difference=difference if np.isfinite(difference) else None,
    )


def _ratio(found: Floats, right: Floats) -> float | None:
    """The factor between two gradients, None where no single one explains them."""
    largest = np.unravel_index(int(np.abs(right).argmax()), right.shape)
    peak = float(right[largest])
    if peak == 0:
        return None
    ratio = float(found[largest]) / peak
    near = np.abs(found - ratio * right) <= _SAME * max(float(np.abs(found).max()), abs(ratio * peak))
    return ratio if np.isfinite(ratio) and near.all() else None


def _listed(rows: Floats) -> list[list[float]] | None:
    return (rows + 0.0).tolist() if rows.size <= MAX_LISTED_CELLS else None


def _collective(inputs: Inputs) -> Collective:
    ranks = len(inputs.values)
    if sum(map(len, inputs.values)) > MAX_CELLS:
        raise _too_many("values")
    values = rectangle(inputs.values, "values", "rank", " rank ")
    length = values.shape[1]
    if inputs.op in SLOTTED and length % ranks:
        raise _not_divisible("values", length, ranks)
    outputs = (
        length * ranks if inputs.op == "all_gather" else length // ranks if inputs.op == "reduce_scatter" else length
    )
    if outputs * ranks > MAX_CELLS:
        raise _too_many("values")
    return Collective(inputs.op, inputs.reduce, inputs.root, values, _output_grads(inputs, (ranks, outputs)))


def _output_grads(inputs: Inputs, shape: tuple[int, int]) -> Floats:
    if inputs.output_grads is None:
        return np.ones(shape)
    if sum(map(len, inputs.output_grads)) > MAX_CELLS:
        raise _too_many("output_grads")
    grads = rectangle(inputs.output_grads, "output_grads", "rank", " rank ")
    if grads.shape != shape:
        en = f"have {len(grads)} rows of {grads.shape[1]} values; the outputs are {shape[0]} rows of {shape[1]}"
        zh = f"是 {len(grads)} 行、每行 {grads.shape[1]} 个值；输出是 {shape[0]} 行、每行 {shape[1]} 个"
        raise InputError(en, zh, field="output_grads", code="shape_mismatch")
    return grads


def _too_many(field: str) -> InputError:
    en = f"make inputs or outputs of more than {MAX_CELLS:,} values over all ranks"
    return InputError(en, f"使各 rank 输入或输出合计超过 {MAX_CELLS:,} 个值", field=field, code="too_long")


_FORMULAS: dict[tuple[AlgorithmName, Op], tuple[str, str]] = {
    ("ring", "all_reduce"): ("2(P-1)/P·n", "2(P-1)·n"),
    ("ring", "reduce_scatter"): ("(P-1)/P·n", "(P-1)·n"),
    ("ring", "all_gather"): ("(P-1)·n", "P(P-1)·n"),
    ("ring", "broadcast"): ("n", "(P-1)·n"),
    ("ring", "all_to_all"): ("(P-1)/2·n", "P(P-1)/2·n"),
    ("pairwise", "all_to_all"): ("(P-1)/P·n", "(P-1)·n"),
    ("tree", "all_reduce"): ("n + c·n", "2(P-1)·n"),
    ("tree", "reduce_scatter"): ("n + (s-1)/P·n", "(P-1)·n + Σs/P·n"),
    ("tree", "all_gather"): ("s·n + c·P·n", "Σs·n + P(P-1)·n"),
    ("tree", "broadcast"): ("c·n", "(P-1)·n"),
    ("tree", "all_to_all"): ("s(P-s)/P·n + Σs'(P-s')/P·n", "2·Σs(P-s)/P·n"),
}
"""Bytes sent by one rank and by all; n: bytes of a rank's input. In the ring P divides the elements, and of a
broadcast the last rank sends nothing. In the tree a rank has c children and s ranks below it, itself included (s': a
child's), the root sends nothing up, and the sums run over all ranks but the root."""


def _traffic(inputs: Inputs, elements: int) -> dict[AlgorithmName, Traffic]:
    op, size, ranks = inputs.op, BYTES[inputs.dtype], len(inputs.values)
    found: dict[AlgorithmName, traffic.Sent] = {
        "ring": traffic.ring(op, elements, size, ranks, inputs.root),
        "tree": traffic.tree(op, elements, size, ranks, inputs.root),
    }
    if op == "all_to_all":
        found["pairwise"] = traffic.pairwise(elements, size, ranks)
    return {
        name: Traffic(
            steps=sent.steps,
            per_rank=list(sent.per_rank),
            busiest_rank=max(sent.per_rank),
            total=sum(sent.per_rank),
            rank_formula=_FORMULAS[name, op][0],
            total_formula=_FORMULAS[name, op][1],
        )
        for name, sent in found.items()
    }


def compute(inputs: Inputs) -> Result:
    """Outputs, backwards and bytes; InputError where rows do not fit the collective or a value leaves float64."""
    return _evaluate(inputs)[0]


@np.errstate(all="ignore")
def _evaluate(inputs: Inputs) -> tuple[Result, Collective]:
    collective = _collective(inputs)
    outputs, right = collective.outputs(), adjoint(collective)
    if not np.isfinite(outputs).all():
        en, zh = "take an output out of float64", "使输出超出 float64 的范围"
        raise InputError(en, zh, field="values", code="number_range")
    length = collective.values.shape[1]
    elements = length if inputs.buffer_elements is None else inputs.buffer_elements
    result = Result(
        op=inputs.op,
        reduce=inputs.reduce if inputs.op in REDUCING else None,
        ranks=collective.ranks,
        input_elements=length,
        output_elements=outputs.shape[1],
        outputs=_listed(outputs),
        outputs_agree=bool((outputs == outputs[0]).all()),
        ties=collective.ties(),
        schemes={name: _way(way(collective), right) for name, way in WAYS.items()},
        element_bytes=BYTES[inputs.dtype],
        buffer_elements=elements,
        buffer_bytes=elements * BYTES[inputs.dtype],
        traffic=_traffic(inputs, elements),
    )
    return result, collective


def present(inputs: Inputs, scheme: str | None = None) -> View:
    """What is shown of a body, with one of the backwards selected: the first, unless `scheme` names another."""
    result, collective = _evaluate(inputs)
    selected = chosen(result.schemes, scheme)
    current = result.schemes[selected]
    rows = _rows(result, collective, current)
    return View(**dict(result), selected=selected, current=current, rows=rows, root=inputs.root)


def _rows(result: Result, collective: Collective, current: WayResult) -> list[Row] | None:
    right = result.schemes["adjoint"].gradient
    if result.outputs is None or right is None:
        return None
    return [
        Row(
            rank=r,
            input=collective.values[r].tolist(),
            output=result.outputs[r],
            output_grad=collective.grads[r].tolist(),
            adjoint=right[r],
            gradient=None if current.gradient is None else current.gradient[r],
            reason=current.reason,
        )
        for r in range(result.ranks)
    ]
