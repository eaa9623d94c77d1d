"""The panel's state: `;` separates ranks, `,` microsteps, `+` or a blank the members of a cell: `1 2,3;4,5 6`."""

import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Annotated, Any, Literal

from pydantic import Field

from samestep.app.calculators.batch_statistics.inputs import (
    MAX_TOKENS,
    Inputs,
    Momentum,
    OptionalEps,
    Parts,
    Place,
    RoutedCell,
    Shards,
    Term,
    TopK,
    read_count,
    routing_of,
)
from samestep.app.contract.errors import InputError
from samestep.app.contract.fields import Flag, NonNegative, OrBlank, Real, RowsText, whole_rows
from samestep.app.contract.forms import Form
from samestep.app.contract.models import Query as QueryBase
from samestep.app.contract.numbers import as_json, exact
from samestep.app.contract.rows import split_rows

_PLUS = re.compile(r"(?<![eE])[+＋]|\s+")


def _members(read: Callable[[object], Any]) -> Callable[[object], Any]:
    """Rows of cells of numbers, `1 2,3;4,5 6`; the error names row and cell."""

    def read_cells(value: object) -> Any:
        rows = split_rows(value) if isinstance(value, str) else value
        if not isinstance(rows, list | tuple) or not all(isinstance(row, list | tuple) for row in rows):
            raise InputError(
                "must be rows of cells such as 1 2,3;4,5", "应写成单元格的行，例如 1 2,3;4,5", code="rows_type"
            )
        return tuple(tuple(_cell(cell, r, k, read) for k, cell in enumerate(row)) for r, row in enumerate(rows))

    return read_cells


def _cell(cell: object, r: int, k: int, read: Callable[[object], Any]) -> tuple[Any, ...]:
    parts: Any = [part for part in _PLUS.split(cell) if part] if isinstance(cell, str) else cell
    try:
        return tuple(map(read, parts if isinstance(parts, list | tuple) else [parts]))
    except InputError as error:
        en, zh = f"row {r + 1}, cell {k + 1} {error.en}", f"第 {r + 1} 行第 {k + 1} 格{error.zh}"
        raise InputError(en, zh, code=error.code, cell=(r, k)) from None


def _write(rows: Sequence[Sequence[Sequence[Any]]]) -> str:
    return ";".join(",".join(" ".join(str(member) for member in cell) for cell in row) for row in rows)


def _text_of_cells(read: Callable[[object], Any], example: str) -> Form:
    return Form("json", _members(read), {"type": "string", "examples": [example]}, _write, textual=True)


RealCells = Annotated[tuple[tuple[tuple[Fraction, ...], ...], ...], _text_of_cells(exact, "0 1 2 3;4 5 6 7 8")]
WholeCells = Annotated[tuple[tuple[tuple[int, ...], ...], ...], _text_of_cells(read_count, "100 0;0 100")]
TokenRows = Annotated[tuple[tuple[int, ...], ...], whole_rows(0, MAX_TOKENS)]

ChosenScheme = Annotated[
    Literal[
        "global",
        "global_f_local_p",
        "f_so_far",
        "per_microstep",
        "per_rank",
        "per_microbatch",
        "averaged_moments",
        "whole_window",
        "sync_batch_norm",
        "local",
        "sync_unweighted",
        "whole",
        "channels_split",
    ]
    | None,
    OrBlank,
]


class Query(QueryBase):
    """The panel: one term, its fields, and a scheme to look at (blank: what is usually done to the term)."""

    term: Term = "load_balance"
    top_k: TopK = 1
    tokens: TokenRows = Field(default="100;100", validate_default=True)
    assigned: WholeCells = Field(default="100+0;0+100", validate_default=True)
    probability: RealCells = Field(default="0.9+0.1;0.1+0.9", validate_default=True)
    values: RealCells = Field(default="0 1 2 3;4 5 6 7 8", validate_default=True)
    unbiased: Flag = True
    eps: OptionalEps = None
    eps_place: Place = "inside"
    momentum: Momentum = Fraction(1, 10)
    running_mean: Real = Fraction(0)
    running_var: NonNegative = Fraction(1)
    samples: RowsText = Field(default="1,2,3,10;0,0,4,8", validate_default=True)
    groups: Parts = 1
    shards: Shards = 2
    scheme: ChosenScheme = None

    def inputs(self) -> Inputs:
        """The body that these fields stand for: those of its term. InputError by the names of the panel."""
        names: dict[Term, tuple[str, ...]] = {
            "load_balance": ("top_k",),
            "whiten": ("unbiased", "eps", "eps_place"),
            "batch_norm": ("eps", "momentum", "running_mean", "running_var"),
            "group_norm": ("groups", "shards", "eps"),
        }
        fields: dict[str, Any] = {"term": self.term, **{name: getattr(self, name) for name in names[self.term]}}
        if self.term == "load_balance":
            fields["cells"] = self._routed()
        elif self.term == "group_norm":
            fields["samples"] = [[as_json(value) for value in row] for row in self.samples]
        else:
            fields["values"] = [[[as_json(value) for value in cell] for cell in row] for row in self.values]
        inputs = Inputs(**{name: value for name, value in fields.items() if value is not None})
        if self.term == "load_balance":
            try:
                routing_of(inputs)
            except InputError as error:
                raise _in_panel(error) from None
        return inputs

    def _routed(self) -> list[list[RoutedCell]]:
        shape = [len(row) for row in self.tokens]
        for name, rows in (("assigned", self.assigned), ("probability", self.probability)):
            if [len(row) for row in rows] != shape:
                en, zh = "need as many rows and cells as tokens", "的行数和每行的单元格数须与 tokens 相同"
                raise InputError(en, zh, field=name, code="shape_mismatch")
        return [
            [
                RoutedCell(tokens=n, assigned=list(assigned), probability=[as_json(p) for p in probability])
                for n, assigned, probability in zip(*row, strict=True)
            ]
            for row in zip(self.tokens, self.assigned, self.probability, strict=True)
        ]


def _in_panel(error: InputError) -> InputError:
    """A cell's refusal by the panel's name of its field, the place in words."""
    if len(error.field) < 4:
        return InputError(error.en, error.zh, "tokens", error.code)
    r, k, name = int(error.field[1]), int(error.field[2]), str(error.field[3])
    en, zh = f"row {r + 1}, cell {k + 1} {error.en}", f"第 {r + 1} 行第 {k + 1} 格{error.zh}"
    return InputError(en, zh, name, error.code, (r, k))
