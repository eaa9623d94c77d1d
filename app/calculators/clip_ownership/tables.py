"""Gradients and their copies from a table, one line an element: `rank,id,grad,param,owner,expert`."""

from typing import Any

from samestep.app.contract.tables import Columns, TableForm, numbered, table_error

_FLAGS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


def _copies(columns: Columns) -> dict[str, Any]:
    """Copies in the order of the file; the first rank that holds an id owns it by default."""
    texts = {name: [str(cell) for cell in column] for name, column in columns.items()}
    rank = numbered(columns, "rank").tolist()
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
    return {"ranks": [[copy for (r, _), copy in held.items() if r == wanted] for wanted in range(max(rank) + 1)]}


def _flag(text: str, name: str, line: int) -> bool:
    if text.lower() not in _FLAGS:
        raise table_error(f"line {line}: {name} must be true or false", f"第 {line} 行：{name} 应为 true 或 false")
    return _FLAGS[text.lower()]


TABLES = (
    TableForm(
        columns=("rank", "id", "grad"),
        optional=("param", "owner", "expert"),
        texts=frozenset({"id", "owner", "expert"}),
        read=_copies,
    ),
)
