"""Cells of routed tokens, one line a cell, and plain values, one line each, from a table."""

from typing import Any

from samestep.app.contract.tables import Columns, TableForm, in_cells, in_rows, numbers_in_cell

_BY_EXPERT = ("assigned", "probability")


def _cells(columns: Columns) -> dict[str, Any]:
    """`assigned` and `probability` hold a number for every expert in one cell of the table: `100+0`."""
    rows = in_rows(columns)
    cells = [
        [
            {"tokens": tokens} | {name: numbers_in_cell(rows[name][r][k]) for name in _BY_EXPERT}
            for k, tokens in enumerate(row)
        ]
        for r, row in enumerate(rows["tokens"])
    ]
    return {"term": "load_balance", "cells": cells}


def _values(columns: Columns) -> dict[str, Any]:
    return {"values": [[[line["value"] for line in cell] for cell in row] for row in in_cells(columns)]}


TABLES = (
    TableForm(
        columns=("rank", "tokens", *_BY_EXPERT), optional=("microstep",), texts=frozenset(_BY_EXPERT), read=_cells
    ),
    TableForm(columns=("rank", "value"), optional=("microstep",), read=_values),
)
