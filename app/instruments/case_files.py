"""Files that readers bring: a body or worked cases as JSON, tables as CSV; and the file that a state is saved as.

A JSON file holds a body by itself, one case (`kind`, `inputs` and perhaps `expected`, `tolerance`, `scheme`), or many
under `cases`. A CSV file is read by `tables`.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import from_json

from samestep.app.calculators import Calculator, registry
from samestep.app.contract.errors import FieldError, InputError, RefusedError, not_json
from samestep.app.instruments.bodies import BodyState
from samestep.app.instruments.comparison import check
from samestep.app.instruments.csv_tables import table

KINDS = {
    "ledger": "replica_ledger",
    "infonce": "info_nce",
    "clip": "clip_ownership",
    "overflow": "overflow_skip",
    "optimizer_empty_step": "empty_step",
    "sampler": "sampler_padding",
}
"""The kinds of worked cases that have another name than their calculator."""

MAX_CASES = 1_000
_LARGEST_LIST = 4 * 2**20
_SHOWN = 200

_KIND_OF = {name: kind for kind, name in KINDS.items()}


@dataclass(frozen=True)
class Case:
    """One body, for a calculator by `name`, and what its file expects of the answer (None: nothing)."""

    name: str
    state: BodyState
    expected: Any = None
    tolerance: Mapping[str, float] = field(default_factory=dict)
    id: str = ""
    title: str = ""


@dataclass(frozen=True)
class CaseList:
    """The cases of a file; `without_calculator` are the ids of those whose kind no calculator takes, by kind."""

    cases: tuple[Case, ...]
    without_calculator: Mapping[str, tuple[str, ...]]


def file_error(en: str, zh: str, code: str = "file") -> RefusedError:
    return RefusedError([FieldError(("file",), code, en, zh)])


def read_file(
    calculator: Calculator, content: bytes, into: str, body: Mapping[str, Any], scheme: str | None = None
) -> Case | CaseList:
    """What a file holds. `body` and `scheme` are the page's own state; a table leaves all else of it as it is.

    `into` names the field that a table without a header fills. RefusedError says what is wrong with the file.
    """
    try:
        text = content.decode("utf-8-sig").strip()
    except UnicodeDecodeError:
        en = "is not UTF-8 text: choose “CSV UTF-8” where your spreadsheet saves it"
        raise file_error(en, "不是 UTF-8 文本：从表格软件另存时请选“CSV UTF-8”") from None
    if not text:
        raise file_error("is empty", "是空的") from None
    if text[0] not in "{[":
        return Case(calculator.name, BodyState(table(calculator, text, into, body), scheme))
    try:
        found = from_json(text, allow_inf_nan=False)
    except ValueError as error:
        raise file_error(*not_json(error)) from None
    if not isinstance(found, dict):
        en, zh = "must hold a JSON object: a body, a case, or cases", "应是 JSON 对象：请求体、一个算例或 cases"
        raise file_error(en, zh)
    if isinstance(found.get("cases"), list):
        if len(content) > _LARGEST_LIST:
            en = "holds several cases in more than 4 MiB: open a large case as a file of its own"
            raise file_error(en, "含多个算例，超过 4 MiB：大的算例请单独存成一个文件", "too_long")
        return _cases(found["cases"], calculator.name)
    if not isinstance(found.get("inputs"), dict):
        return Case(calculator.name, BodyState(found))
    kind = found.get("kind", calculator.name)
    name = calculator_of(kind)
    if name is None:
        shown = _short(kind)
        en, zh = (
            f"holds a case of the kind “{shown}”, which no calculator takes",
            f"是 {shown} 类算例，没有计算器接受它",
        )
        raise file_error(en, zh)
    return _case(name, found)


def calculator_of(kind: object) -> str | None:
    """The calculator that a kind of case belongs to."""
    name = KINDS.get(kind, kind) if isinstance(kind, str) else None
    return name if name in registry() else None


def _cases(entries: list[Any], kind_of_all: str) -> CaseList:
    """The cases of a list; one that names no kind is of the page's own."""
    if len(entries) > MAX_CASES:
        raise file_error(f"holds more than {MAX_CASES:,} cases", f"算例超过 {MAX_CASES:,} 个", "too_long")
    cases: list[Case] = []
    others: dict[str, list[str]] = {}
    for number, entry in enumerate(entries, 1):
        if not isinstance(entry, dict):
            continue
        kind = entry.get("kind", kind_of_all)
        name = calculator_of(kind)
        if name is not None and isinstance(entry.get("inputs"), dict):
            cases.append(_case(name, entry))
        else:
            others.setdefault(_short(kind), []).append(_short(entry.get("id", f"#{number}")))
    if not cases and not others:
        raise file_error("holds no cases", "没有算例")
    return CaseList(tuple(cases), {kind: tuple(ids) for kind, ids in others.items()})


def _short(value: object) -> str:
    """A text of the file as it may stand on a page."""
    text = value if isinstance(value, str) else str(value)[:_SHOWN]
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"


def _case(name: str, entry: Mapping[str, Any]) -> Case:
    tolerance, scheme, expected = entry.get("tolerance"), entry.get("scheme"), entry.get("expected")
    if isinstance(expected, Mapping):
        try:
            check(expected)
        except InputError as error:
            raise file_error(f"expected {error.en}", f"的 expected {error.zh}", error.code) from None
    return Case(
        name=name,
        state=BodyState(entry["inputs"], scheme if isinstance(scheme, str) else None),
        expected=expected if isinstance(expected, Mapping) else None,
        tolerance=numbers_in(tolerance),
        id=_short(entry.get("id", "")),
        title=_short(entry.get("title", "")),
    )


def numbers_in(tolerance: object) -> dict[str, float]:
    """The tolerances of a case that are numbers."""
    given = tolerance if isinstance(tolerance, Mapping) else {}
    return {
        name: float(value)
        for name, value in given.items()
        if name in ("rtol", "atol") and isinstance(value, int | float) and 0 <= value < 1e300
    }


def saved(name: str, state: BodyState) -> bytes:
    """The file that a state is saved as: a case without expectations."""
    case: dict[str, Any] = {"kind": _KIND_OF.get(name, name), "inputs": state.body}
    if state.scheme is not None:
        case["scheme"] = state.scheme
    return json.dumps(case, ensure_ascii=False, indent=1, allow_nan=False).encode()
