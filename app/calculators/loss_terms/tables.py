"""The terms of a loss from a table with one line a cell of a term: `term,rank,microstep,count,sum,coefficient`."""

from typing import Any

from samestep.app.contract.tables import Columns, TableForm, by_name, in_rows, table_error


def _terms(columns: Columns) -> dict[str, Any]:
    """Terms in the order of their first line; one has the same coefficient in all of its lines."""
    terms: list[dict[str, Any]] = []
    for name, lines in by_name(columns, "term").items():
        rows = in_rows(lines)
        term: dict[str, Any] = {"name": name, "counts": rows["count"], "sums": rows["sum"]}
        coefficients = sorted({str(cell) for cell in lines.get("coefficient", ())})
        if len(coefficients) > 1:
            listed = ", ".join(coefficients[:4])
            raise table_error(f"has several coefficients for “{name}”: {listed}", f"“{name}”有几个系数：{listed}")
        if coefficients:
            term["coefficient"] = coefficients[0]
        terms.append(term)
    return {"terms": terms}


TABLES = (
    TableForm(
        columns=("term", "rank", "count", "sum"),
        optional=("microstep", "coefficient"),
        texts=frozenset({"term"}),
        read=_terms,
    ),
)
