"""How an experiment writes down what it found: rows with a stated expectation, controls, environment, verdict."""

import math
import platform
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from samestep.app.evidence.bags import (
    AGREES,
    DIFFERS,
    SCHEMA,
    Control,
    Expectation,
    Json,
    Result,
    Row,
    TensorSet,
    Text,
    Tolerance,
    met,
)
from samestep.experiments import calculated

Named = Mapping[str, Tensor]


def difference(got: Tensor, wanted: Tensor) -> float | None:
    """Largest absolute difference over all elements; None when either holds a value that is not finite."""
    largest = float((got.cpu() - wanted.cpu()).abs().max()) if got.numel() else 0.0
    return largest if math.isfinite(largest) else None


def difference_over(got: Named, wanted: Named) -> float | None:
    """`difference` over sets of tensors with the same names."""
    if got.keys() != wanted.keys():
        raise ValueError(f"different tensors: {sorted(got.keys() ^ wanted.keys())}")
    largest = [difference(got[name], wanted[name]) for name in wanted]
    return None if None in largest else max((each for each in largest if each is not None), default=0.0)


def plain(value: Tensor | float) -> Json:
    """A tensor as nested lists, a number as it is: without −0, and with non-finite numbers as strings."""
    if isinstance(value, Tensor):
        listed = value.detach().cpu().tolist()
        return [plain(each) for each in _tensors(value)] if isinstance(listed, list) else plain(float(listed))
    if math.isfinite(value):
        return value + 0.0
    return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"


def _tensors(value: Tensor) -> Iterable[Tensor]:
    return value.detach().unbind(0)


def arrays(tensors: Named) -> dict[str, NDArray[Any]]:
    return {name: np.asarray(tensor.detach().cpu().numpy()) for name, tensor in tensors.items()}


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
    return control("calculator", title, holds, rows=len(differences), max_abs_difference=plain(largest))


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
    tensors: Mapping[str, TensorSet] | None = None,
    rerun: float = 1e-10,
    curve: dict[str, list[list[float]]] | None = None,
) -> Result:
    """The whole note. It holds when there are rows, and every row and control is met."""
    name = module.rpartition(".")[2]
    tolerance: Tolerance = {"agrees": AGREES, "differs": DIFFERS, "rerun": rerun}
    holds = bool(rows) and all(each["met"] for each in rows) and all(each["met"] for each in controls)
    made: Result = {
        "schema": SCHEMA,
        "name": name,
        "question": question,
        "scope": scope,
        "command": f"python -m experiments run {name} --processes {processes}",
        "processes": processes,
        "setup": dict(setup),
        "tolerance": tolerance,
        "cases": dict(cases),
        "paths": dict(paths),
        "rows": list(rows),
        "controls": list(controls),
        "tensors": dict(tensors or {}),
        "environment": environment(),
        "verdict": "holds" if holds else "fails",
    }
    if curve:
        made["curve"] = curve
    return made


def environment() -> dict[str, Json]:
    """What the last bits of a number may depend on."""
    return {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "system": platform.system(),
        "machine": platform.machine(),
        "cpu": _cpu(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "device": torch.get_default_device().type,
        "dtype": str(torch.get_default_dtype()).removeprefix("torch."),
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
    }


def _cpu() -> str:
    information = Path("/proc/cpuinfo")
    if information.is_file():
        for line in information.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()
