"""How an experiment writes down what it found: rows with a stated expectation, controls, environment, verdict.

Torch-free: an experiment whose numbers come from other processes need not import it.
"""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from samestep.app.evidence.bags import (
    AGREES,
    DIFFERS,
    SCHEMA,
    Control,
    Expectation,
    Json,
    NotMeasured,
    Result,
    Row,
    TensorSet,
    Text,
    Tolerance,
    met,
)
from samestep.experiments import calculated


def number(value: float | None) -> Json:
    """A number as it is, without −0, or as a string where it is not finite; None where there is none."""
    if value is None or math.isfinite(value):
        return None if value is None else value + 0
    return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"


def row(
    case: str,
    path: str,
    title: Text,
    expectation: Expectation,
    differences: Mapping[str, float | None],
    *,
    expected: Mapping[str, Expectation] | None = None,
    optimizer: str | None = None,
    values: Mapping[str, Json] | None = None,
    also: bool = True,
    note: Text | None = None,
) -> Row:
    """One comparison. `expected` names the quantities that behave otherwise than the row's `expectation`.

    `also` is anything else that had to hold; the row is not met without it.
    """
    every = dict.fromkeys(differences, expectation) | dict(expected or {})
    parts = [case, path, optimizer] if optimizer else [case, path]
    made: Row = {
        "id": "-".join(part for part in parts if part).replace("_", "-"),
        "case": case,
        "path": path,
        "title": title,
        "expectation": expectation,
        "expected": every,
        "max_abs_difference": dict(differences),
        "values": dict(values or {}),
        "met": met(every, differences) and also,
    }
    if optimizer:
        made["optimizer"] = optimizer
    if note:
        made["note"] = note
    return made


def control(name: str, title: Text, holds: bool, **values: Json) -> Control:
    return {"id": name.replace("_", "-"), "title": title, "values": values, "met": holds}


def calculator_agrees(module: str, setup: Mapping[str, Json], rows: Sequence[Row]) -> Control:
    """The wiki's calculator gives the measured numbers of every row that it covers."""
    differences = calculated.agreement(module.rpartition(".")[2], setup, rows) or {}
    largest = max(differences.values(), default=float("inf"))
    title: Text = {"zh": "页面上的计算器给出同样的数", "en": "the wiki's calculator gives the same numbers"}
    holds = largest <= calculated.TOLERANCE
    return control("calculator", title, holds, rows=len(differences), max_abs_difference=number(largest))


def result(
    module: str,
    processes: int,
    *,
    question: Text,
    scope: Text,
    setup: Mapping[str, Json],
    cases: Mapping[str, Text],
    paths: Mapping[str, Text],
    rows: Sequence[Row],
    controls: Sequence[Control],
    environment: Mapping[str, Json],
    command: str | None = None,
    tensors: Mapping[str, TensorSet] | None = None,
    rerun: float = 1e-10,
    curve: dict[str, list[list[float]]] | None = None,
    not_measured: Sequence[NotMeasured] | None = None,
) -> Result:
    """The whole note. It holds when there are rows, and every row and control is met.

    `command`: what repeats it, unless it takes `--processes`. `not_measured`: what could not be measured here.
    """
    name = module.rpartition(".")[2]
    tolerance: Tolerance = {"agrees": AGREES, "differs": DIFFERS, "rerun": rerun}
    holds = bool(rows) and all(each["met"] for each in rows) and all(each["met"] for each in controls)
    made: Result = {
        "schema": SCHEMA,
        "name": name,
        "question": question,
        "scope": scope,
        "command": command or f"python -m experiments run {name} --processes {processes}",
        "processes": processes,
        "setup": dict(setup),
        "tolerance": tolerance,
        "cases": dict(cases),
        "paths": dict(paths),
        "rows": list(rows),
        "controls": list(controls),
        "tensors": dict(tensors or {}),
        "environment": dict(environment),
        "verdict": "holds" if holds else "fails",
    }
    if not_measured is not None:
        made["not_measured"] = list(not_measured)
    if curve:
        made["curve"] = curve
    return made


def write(made: Result, folder: Path) -> Path:
    """Write `folder/NAME/result.json`; where its other files belong."""
    place = folder / made["name"]
    place.mkdir(parents=True, exist_ok=True)
    text = json.dumps(made, ensure_ascii=False, allow_nan=False, indent=1) + "\n"
    (place / "result.json").write_text(text, "utf-8")
    return place
