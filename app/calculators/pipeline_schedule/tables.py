"""The microbatches of a pipeline from a table, one line each: `call,microbatch,part,count`."""

from typing import Any

from samestep.app.contract.tables import Columns, TableForm, in_rows, numbers_in_cell, table_error


def _microbatches(columns: Columns) -> dict[str, Any]:
    """A part is one number, or a vector in one cell of the table: `1+-2`."""
    rows = in_rows(columns, row="call", place="microbatch")
    parts: list[list[Any]] = []
    for k, row in enumerate(rows["part"]):
        vectors = [numbers_in_cell(text) for text in row]
        if not all(vectors):
            raise table_error(f"has a blank part in call {k}", f"调用 {k} 有空的 part")
        parts.append([vector if len(vector) > 1 else vector[0] for vector in vectors])
    return {"parts": parts} | ({"counts": rows["count"]} if "count" in rows else {})


TABLES = (
    TableForm(
        columns=("call", "part"), optional=("microbatch", "count"), texts=frozenset({"part"}), read=_microbatches
    ),
)
