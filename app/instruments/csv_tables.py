"""CSV files as fields of a body: one matrix by itself, or columns under a header.

    no header               rows are ranks, columns microsteps; the field is chosen beside the file
    rank,microstep,n,g,…    one line a cell, the other columns are matrices of the body; numbered from 0 or from 1
    rank,scaled_grads,…     one line an element of a rank
    param,grad,…            lists of the body, one line an entry
    rank,id,grad,param,owner,expert      gradients and their copies (clipping), one line an element

Up to `_EXACT` cells keep the text they have (`0.1`, `1/3`), more are read as float64.
"""

import csv
import io
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samestep.app.calculators import Calculator
from samestep.app.contract.errors import FieldError, InputError, RefusedError
from samestep.app.contract.limits import MAX_CELLS
from samestep.app.contract.numbers import extended, finite_or_name
from samestep.app.contract.rows import lines_of
from samestep.app.instruments.bodies import BodyField, body_fields

_EXACT = 20_000
_REPORTED = 20
_COPIES = ("rank", "id", "grad", "param", "owner", "expert")
_FLAGS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}

Columns = dict[str, list[str] | NDArray[np.float64]]


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
    if any(map(_is_number, header)):
        return _matrix(calculator, text, delimiter, into, body)
    header = ["rank" if name == "replica" else name for name in header]
    known = body_fields(calculator)
    given = [name for name in header if name not in ("rank", "microstep")]
    if "ranks" in known and {"rank", "id", "grad"} <= set(header) <= set(_COPIES):
        return {**body, "ranks": _copies(_columns(text, delimiter, header))}
    kinds = {known[name].kind if name in known else "" for name in given}
    placed = "rank" in header
    if len(set(header)) < len(header) or not given or kinds != {"matrix" if placed else "list"}:
        raise _error(*_no_such_header(calculator, header))
    columns = _columns(text, delimiter, header)
    fields = _placed(columns) if placed else {name: _values(column) for name, column in columns.items()}
    replaced = {known[name].instead_of for name in given} - {""}
    return {name: v for name, v in body.items() if not _gives_way(name, replaced, known)} | fields


def _gives_way(name: str, replaced: set[str], known: Mapping[str, BodyField]) -> bool:
    """Whether a field of the old state stands for what the table now gives."""
    return name in replaced or (name in known and known[name].instead_of in replaced)


def _matrix(calculator: Calculator, text: str, delimiter: str, into: str, body: Mapping[str, Any]) -> dict[str, Any]:
    body = calculator.inputs.laid_out(dict(body))
    choices = {field.name: field for field in matrices(calculator)}
    if not choices:
        raise _error("has no header, and this calculator takes no plain matrix", "没有表头，而这个计算器不接受单个矩阵")
    field = choices.get(into) or next(iter(choices.values()))
    rows: list[Any] = _matrix_rows(text, delimiter)
    value = rows if field.kind == "matrix" else [cell for row in rows for cell in row]
    return {name: old for name, old in body.items() if not field.instead_of or name != field.instead_of} | {
        field.name: value
    }


def _no_such_header(calculator: Calculator, header: Sequence[str]) -> tuple[str, str]:
    kinds = body_fields(calculator).values()
    forms = [",".join(("rank,microstep", *(f.name for f in kinds if f.kind == "matrix")))]
    forms = [form for form in forms if form != "rank,microstep"]
    if lists := [field.name for field in kinds if field.kind == "list"]:
        forms.append(",".join(lists))
    if "ranks" in body_fields(calculator):
        forms.append(",".join(_COPIES))
    shown = ", ".join(header)[:80]
    if not forms:
        en, zh = "but this calculator takes no table", "但这个计算器不接受表格"
        return f"has the header “{shown}”, {en}", f"表头为“{shown}”，{zh}"
    listed = " | ".join(forms)
    return f"has the header “{shown}”; known are columns of {listed}", f"表头为“{shown}”；可用的列：{listed}"


# ---- cells


def _is_number(cell: str) -> bool:
    try:
        extended(cell)
    except InputError:
        return False
    return True


def _matrix_rows(text: str, delimiter: str) -> list[list[Any]]:
    """Rows of numbers, or of their texts."""
    cells = text.count(delimiter) + text.count("\n") + 1
    _limit(cells)
    if cells > _EXACT:
        numbers = _at_once(text, delimiter, skiprows=0, dtype=np.dtype(np.float64))
        if numbers is not None:
            return [_values(row) for row in numbers]
    rows = [(line, [cell.strip() for cell in row]) for line, row in _lines(text, delimiter)]
    _check([(line, i, cell) for line, row in rows for i, cell in enumerate(row)])
    return [row for _, row in rows]


def _columns(text: str, delimiter: str, header: Sequence[str]) -> Columns:
    """The columns below a header: as float64 where there are many cells, else as texts that are numbers (or words)."""
    lines = text.count("\n")
    _limit(lines)
    if lines * len(header) > _EXACT and not {"id", "owner", "expert"} & set(header):
        kinds = [(name, np.int32 if name in ("rank", "microstep") else np.float64) for name in header]
        numbers = _at_once(text, delimiter, skiprows=1, dtype=np.dtype(kinds))
        if numbers is not None:
            return {name: numbers[name].ravel() for name in header}
    rows = list(itertools.islice(_lines(text, delimiter), 1, None))
    if not rows:
        raise _error("has a header and nothing below it", "只有表头，下面没有内容")
    for line, row in rows:
        if len(row) != len(header):
            en = f"line {line} has {len(row)} cells, the header {len(header)}"
            raise _error(en, f"第 {line} 行有 {len(row)} 格，表头有 {len(header)} 格")
    numeric = [i for i, name in enumerate(header) if name not in ("id", "owner", "expert")]
    _check([(line, i, row[i]) for line, row in rows for i in numeric])
    return {name: [row[i].strip() for _, row in rows] for i, name in enumerate(header)}


def _limit(cells: int) -> None:
    if cells > MAX_CELLS:
        raise _error(f"holds more than {MAX_CELLS:,} cells", f"超过 {MAX_CELLS:,} 格")


def _lines(text: str, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """(line number, cells) of every line that is not blank."""
    reader = csv.reader(io.StringIO(text), delimiter=delimiter)
    try:
        for row in reader:
            if any(cell.strip() for cell in row):
                yield reader.line_num, row
    except csv.Error as error:
        line = reader.line_num
        raise _error(f"line {line} is not CSV: {error}", f"第 {line} 行不是合法的 CSV") from None


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


def _values(column: list[str] | NDArray[np.float64]) -> list[Any]:
    """As JSON has them: non-finite ones are their names."""
    if isinstance(column, list):
        return column
    if np.isfinite(column).all():
        return column.tolist()  # type: ignore[no-any-return]
    return [finite_or_name(value) for value in column.tolist()]


# ---- rows that say where they belong


def _placed(columns: Columns) -> dict[str, Any]:
    """Matrices from columns `rank` and, if there is one, `microstep`; without it entries keep the file's order."""
    rank = _numbered(columns, "rank")
    lines = np.arange(len(rank))
    step = _numbered(columns, "microstep") if "microstep" in columns else lines
    order = np.lexsort((step, rank))
    sizes = np.bincount(rank)
    if not sizes.all():
        missing = int(np.argmin(sizes != 0))
        raise _error(f"has no line for rank {missing} (counted from 0)", f"没有 rank {missing} 的行（从 0 数起）")
    ends = np.cumsum(sizes)[:-1]
    if "microstep" in columns:
        expected = lines - np.repeat(np.cumsum(sizes) - sizes, sizes)
        wrong = np.flatnonzero(step[order] != expected)
        if len(wrong):
            r, k = int(rank[order][wrong[0]]), int(expected[wrong[0]])
            en = f"needs microsteps without gaps, each once: look at rank {r}, microstep {k} (counted from 0)"
            raise _error(en, f"各 rank 的微步应连续且各一行：请看 rank {r} 的微步 {k}（从 0 数起）")
    fields: dict[str, Any] = {}
    for name, column in columns.items():
        if name in ("rank", "microstep"):
            continue
        if isinstance(column, list):
            ordered = [column[i] for i in order.tolist()]
            fields[name] = [ordered[a:b] for a, b in itertools.pairwise([0, *ends.tolist(), len(ordered)])]
        else:
            fields[name] = [_values(part) for part in np.split(column[order], ends)]
    return fields


def _numbered(columns: Columns, name: str) -> NDArray[np.intp]:
    """A column of whole numbers from 0 or from 1, counted from 0."""
    numbers = np.array([extended(cell) for cell in columns[name]]) if isinstance(columns[name], list) else columns[name]
    values = np.asarray(numbers, dtype=np.float64)
    whole = np.isfinite(values) & (values == np.floor(values)) & (values >= 0) & (values < MAX_CELLS + 1)
    if not whole.all():
        line = int(np.argmin(whole)) + 2
        raise _error(f"line {line}: {name} must be 0, 1, 2, …", f"第 {line} 行：{name} 应为 0、1、2……")
    first = int(values.min())
    if first > 1:
        raise _error(f"counts {name} from {first}: begin with 0 or 1", f"{name} 从 {first} 数起：应从 0 或 1 开始")
    return (values - first).astype(np.intp)


def _copies(columns: Columns) -> list[list[dict[str, Any]]]:
    """Gradients and their copies, in the order of the file; the first rank that holds an id owns it by default."""
    texts = {name: [str(cell) for cell in column] for name, column in columns.items()}
    rank = _numbered(columns, "rank").tolist()
    held: dict[tuple[int, str], dict[str, Any]] = {}
    owners: dict[str, int] = {}
    for i, (r, name) in enumerate(zip(rank, texts["id"], strict=True)):
        copy = held.setdefault((r, name), {"id": name, "grad": []})
        copy["grad"].append(texts["grad"][i])
        if "param" in texts:
            copy.setdefault("param", []).append(texts["param"][i])
        for flag in ("owner", "expert"):
            if flag in texts:
                copy[flag] = _flag(texts[flag][i], flag, i + 2)
        owners[name] = min(owners.get(name, r), r)
    for (r, name), copy in held.items():
        copy.setdefault("owner", owners[name] == r)
    return [[copy for (r, _), copy in held.items() if r == wanted] for wanted in range(max(rank) + 1)]


def _flag(text: str, name: str, line: int) -> bool:
    if text.lower() not in _FLAGS:
        raise _error(f"line {line}: {name} must be true or false", f"第 {line} 行：{name} 应为 true 或 false")
    return _FLAGS[text.lower()]


def _error(en: str, zh: str) -> RefusedError:
    return RefusedError([FieldError(("file",), "file", en, zh)])
