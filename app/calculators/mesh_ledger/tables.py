"""What is known of the classes of parameters from a table: `class,contribution`, a line a rank; `class,square`."""

from typing import Any

from samestep.app.contract.tables import Columns, TableForm, by_name, table_error


def _contributions(columns: Columns) -> dict[str, Any]:
    return {"contributions": {name: list(lines["contribution"]) for name, lines in by_name(columns, "class").items()}}


def _squares(columns: Columns) -> dict[str, Any]:
    squares = {name: list(lines["square"]) for name, lines in by_name(columns, "class").items()}
    for name, given in squares.items():
        if len(given) > 1:
            raise table_error(f"has “{name}” {len(given)} times", f"“{name}”出现了 {len(given)} 次")
    return {"squares": {name: given[0] for name, given in squares.items()}}


_CLASS = frozenset({"class"})

TABLES = (
    TableForm(columns=("class", "contribution"), texts=_CLASS, read=_contributions),
    TableForm(columns=("class", "square"), texts=_CLASS, read=_squares),
)
