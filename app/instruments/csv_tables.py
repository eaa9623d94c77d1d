"""CSV files as fields of a body: one matrix by itself, or columns under a header.

    no header               rows are ranks, columns microsteps; the field is chosen beside the file
    rank,microstep,n,g,…    one line a cell, the other columns are matrices of the body; numbered from 0 or from 1
    rank,scaled_grads,…     one line an element of a rank
    param,grad,…            lists of the body, one line an entry
    rank,batch,n,loss,…     what a calculator itself makes a nested field of (`models.Inputs.tables`)

Up to `_EXACT` cells keep the text they have (`0.1`, `1/3`), more are read as float64.
"""

import csv
import io
import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samestep.app.calculators import Calculator
from samestep.app.contract.errors import FieldError, InputError, RefusedError
from samestep.app.contract.limits import MAX_CELLS
from samestep.app.contract.numbers import extended
from samestep.app.contract.rows import lines_of
from samestep.app.contract.tables import Column, in_rows, is_number, table_error, values_of
from samestep.app.instruments.bodies import BodyField, body_fields

_EXACT = 20_000
_REPORTED = 20


def matrices(calculator: Calculator) -> list[BodyField]:
    """The fields that a table without a header may fill, the main one first."""
    fields = [field for field in body_fields(calculator).values() if field.kind in ("matrix", "list")]
    return sorted(fields, key=lambda field: (not field.required and not field.instead_of, field.kind != "matrix"))


def table(calculator: Calculator, text: str, into: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """The body with a table's fields in it; RefusedError names line and column of what cannot be read."""
    text = lines_of(text)
    first = text.partition("\n")[0]
    delimiter = next((mark for mark in "\t;,；，" if mark in first), ",")
    header = [cell.strip().strip('"') for cell in first.split(delimiter)]
    if any(map(is_number, header)):
        return _matrix(calculator, text, delimiter, into, body)
    header = ["rank" if name == "replica" else name for name in header]
    known = body_fields(calculator)
    given = [name for name in header if name not in ("rank", "microstep")]
    once = len(set(header)) == len(header)
    for form in calculator.inputs.tables:
        if once and form.takes(header):
            return {**body, **form.read(_columns(text, delimiter, header, form.texts))}
    kinds = {known[name].kind if name in known else "" for name in given}
    placed = "rank" in header
    if not once or not given or kinds != {"matrix" if placed else "list"}:
        raise table_error(*_no_such_header(calculator, header))
    columns = _columns(text, delimiter, header)
    fields = in_rows(columns) if placed else {name: values_of(column) for name, column in columns.items()}
    replaced = {known[name].instead_of for name in given} - {""}
    return {name: v for name, v in body.items() if not _gives_way(name, replaced, known)} | fields


def _gives_way(name: str, replaced: set[str], known: Mapping[str, BodyField]) -> bool:
    """Whether a field of the old state stands for what the table now gives."""
    return name in replaced or (name in known and known[name].instead_of in replaced)


def _matrix(calculator: Calculator, text: str, delimiter: str, into: str, body: Mapping[str, Any]) -> dict[str, Any]:
    body = calculator.inputs.laid_out(dict(body))
    choices = {field.name: field for field in matrices(calculator)}
    if not choices:
        en, zh = "has no header, and this calculator takes no plain matrix", "没有表头，而这个计算器不接受单个矩阵"
        raise table_error(en, zh)
    field = choices.get(into) or next(iter(choices.values()))
    rows: list[Any] = _matrix_rows(text, delimiter)
    value = rows if field.kind == "matrix" else [cell for row in rows for cell in row]
    return {name: old for name, old in body.items() if not field.instead_of or name != field.instead_of} | {
        field.name: value
    }


def headers(calculator: Calculator) -> tuple[str, ...]:
    """The headers that a table may have: matrices by their cells, lists together, and the calculator's own forms."""
    kinds = body_fields(calculator).values()
    matrices_given = [field.name for field in kinds if field.kind == "matrix"]
    lists = [field.name for field in kinds if field.kind == "list"]
    own = [(*form.columns, *form.optional) for form in calculator.inputs.tables]
    forms = [("rank", "microstep", *matrices_given) if matrices_given else (), lists, *own]
    return tuple(",".join(form) for form in forms if form)


def _no_such_header(calculator: Calculator, header: Sequence[str]) -> tuple[str, str]:
    shown = ", ".join(header)[:80]
    known = headers(calculator)
    if not known:
        en, zh = "but this calculator takes no table", "但这个计算器不接受表格"
        return f"has the header “{shown}”, {en}", f"表头为“{shown}”，{zh}"
    listed = " | ".join(known)
    return f"has the header “{shown}”; known are columns of {listed}", f"表头为“{shown}”；可用的列：{listed}"


# ---- cells


def _matrix_rows(text: str, delimiter: str) -> list[list[Any]]:
    """Rows of numbers, or of their texts."""
    cells = text.count(delimiter) + text.count("\n") + 1
    _limit(cells)
    if cells > _EXACT:
        numbers = _at_once(text, delimiter, skiprows=0, dtype=np.dtype(np.float64))
        if numbers is not None:
            return [values_of(row) for row in numbers]
    rows = [(line, [cell.strip() for cell in row]) for line, row in _lines(text, delimiter)]
    _check([(line, i, cell) for line, row in rows for i, cell in enumerate(row)])
    return [row for _, row in rows]


def _columns(
    text: str, delimiter: str, header: Sequence[str], texts: Collection[str] = frozenset()
) -> dict[str, Column]:
    """The columns below a header: as float64 where there are many cells, else as texts that are numbers; or, of
    `texts`, whatever they are."""
    lines = text.count("\n")
    _limit(lines)
    if lines * len(header) > _EXACT and not set(texts) & set(header):
        kinds = [(name, np.int32 if name in ("rank", "microstep") else np.float64) for name in header]
        numbers = _at_once(text, delimiter, skiprows=1, dtype=np.dtype(kinds))
        if numbers is not None:
            return {name: numbers[name].ravel() for name in header}
    rows = list(itertools.islice(_lines(text, delimiter), 1, None))
    if not rows:
        raise table_error("has a header and nothing below it", "只有表头，下面没有内容")
    for line, row in rows:
        if len(row) != len(header):
            en = f"line {line} has {len(row)} cells, the header {len(header)}"
            raise table_error(en, f"第 {line} 行有 {len(row)} 格，表头有 {len(header)} 格")
    numeric = [i for i, name in enumerate(header) if name not in texts]
    _check([(line, i, row[i]) for line, row in rows for i in numeric])
    return {name: [row[i].strip() for _, row in rows] for i, name in enumerate(header)}


def _limit(cells: int) -> None:
    if cells > MAX_CELLS:
        raise table_error(f"holds more than {MAX_CELLS:,} cells", f"超过 {MAX_CELLS:,} 格")


def _lines(text: str, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """(line number, cells) of every line that is not blank."""
    reader = csv.reader(io.StringIO(text), delimiter=delimiter)
    try:
        for row in reader:
            if any(cell.strip() for cell in row):
                yield reader.line_num, row
    except csv.Error as error:
        line = reader.line_num
        raise table_error(f"line {line} is not CSV: {error}", f"第 {line} 行不是合法的 CSV") from None


def _at_once(text: str, delimiter: str, *, skiprows: int, dtype: np.dtype[Any]) -> NDArray[Any] | None:
    """All cells in one go, [line, column]; None where they are not a rectangle of plain numbers."""
    try:
        return np.loadtxt(
            io.StringIO(text), dtype=dtype, delimiter=delimiter, skiprows=skiprows, ndmin=2, comments=None
        )
    except ValueError:
        return None


def _check(cells: list[tuple[int, int, str]]) -> None:
    """RefusedError with the first cells, (line, column, text), that are not numbers."""
    errors: list[FieldError] = []
    for line, column, cell in cells:
        try:
            extended(cell)
        except InputError as error:
            en, zh = f"line {line}, column {column + 1}: {error.en}", f"第 {line} 行第 {column + 1} 列：{error.zh}"
            if "," in cell:
                en += "; decimals have a point, thousands no mark"
                zh += "；小数点写作 .，千位不加分隔"
            errors.append(FieldError(("file",), error.code, en, zh, cell, (line - 1, column)))
            if len(errors) == _REPORTED:
                break
    if errors:
        raise RefusedError(errors)
