"""What the wiki's calculators say of an experiment's fixtures, beside what its processes measured.

Torch-free: an experiment asks it before it gives its verdict, and `verify` asks it again of what is published, so that
a calculator that changes later cannot drift away from the evidence unnoticed.
"""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, cast

from samestep.app.evidence.bags import Json, Row

TOLERANCE = 1e-12

Values = Mapping[str, Json]


def agreement(name: str, setup: Values, rows: Sequence[Row]) -> dict[str, float] | None:
    """Row id to the largest difference between measured and calculated numbers; None: no calculator covers it."""
    compare = _COMPARISONS.get(name)
    return None if compare is None else compare(setup, rows)


def gap(measured: Json, calculated: Json) -> float:
    """Largest absolute difference over nested lists; infinite where their shapes differ."""
    if isinstance(measured, list) and isinstance(calculated, list) and len(measured) == len(calculated):
        return max(map(gap, measured, calculated), default=0.0)
    numbers = (int, float)
    if isinstance(measured, numbers) and isinstance(calculated, numbers):
        return abs(float(measured) - float(calculated))
    return 0.0 if measured == calculated else float("inf")


_INFO_NCE_SCHEMES: dict[str, dict[str, str]] = {
    "gather_with_grad": {"gather": "grad_sum", "loss": "local"},
    "library_gather_with_grad": {"gather": "grad_sum", "loss": "local"},
    "remote_detached": {"gather": "detach_keep_local", "loss": "local"},
    "own_slice": {"gather": "detach_keep_local", "loss": "local"},
    "single_pair": {"gather": "none", "loss": "local"},
    "whole_loss_gather_with_grad": {"gather": "grad_sum", "loss": "global"},
    "whole_loss_remote_detached": {"gather": "detach_keep_local", "loss": "global"},
    "whole_loss_remote_detached_times_p": {"gather": "detach_keep_local", "loss": "global", "multiplier": "P"},
    "gather_with_grad_divided_by_p": {"gather": "grad_sum", "loss": "local", "divide_by": "P"},
}


def _info_nce(setup: Values, rows: Sequence[Row]) -> dict[str, float]:
    """Every path but the one whose replicas drift apart: the calculator assumes that DDP reduced what it holds."""
    schemes = [{"name": name, **scheme} for name, scheme in _INFO_NCE_SCHEMES.items()]
    said: dict[str, Any] = {}
    for case, fixture in cast(dict[str, dict[str, Any]], setup["fixtures"]).items():
        body = {
            "q": [[row] for row in fixture["a"]],
            "d": [[row] for row in fixture["b"]],
            "tau": fixture["temperature"],
            "schemes": schemes,
        }
        said[case] = _answer("info_nce", body)["schemes"]
    differences = {}
    for row in rows:
        if row["path"] in _INFO_NCE_SCHEMES:
            scheme, values = said[row["case"]][row["path"]], row["values"]
            ranks = cast(list[dict[str, Json]], values["ranks"])
            measured: list[Json] = [
                [rank["loss"] for rank in ranks],
                [[each] for each in cast(list[Json], values["query_gradients"])],
                [[each] for each in cast(list[Json], values["document_gradients"])],
                values["wq_gradient"],
                values["wd_gradient"],
            ]
            names = ("rank_losses", "grad_q", "grad_d", "grad_wq_per_dim", "grad_wd_per_dim")
            differences[row["id"]] = gap(measured, [scheme[name] for name in names])
    return differences


def _clip_ownership(setup: Values, rows: Sequence[Row]) -> dict[str, float]:
    """`clip_ownership` for the scenes that clip, `overflow_skip` for the others."""
    differences: dict[str, float] = {}
    for row in rows:
        scene = cast(dict[str, dict[str, Any]], setup["scenes"])[row["case"]]
        compare = _skipped if scene["max_norm"] is None else _clipped
        differences |= compare(row, scene, cast(float, setup["learning_rate"]))
    return differences


def _clipped(row: Row, scene: Mapping[str, Any], learning_rate: float) -> dict[str, float]:
    ranks = [
        [{"id": copy["id"], "grad": [copy["scaled"]], "owner": copy["owner"], "param": [1]} for copy in copies]
        for copies in scene["ranks"]
    ]
    body = {"ranks": ranks, "loss_scale": scene["scales"][0], "max_norm": scene["max_norm"], "lr": learning_rate}
    said = _answer("clip_ownership", body)["schemes"][row["path"]]
    flat = {
        "norm": said["norm"],
        "coefficient": said["coefficient"],
        "clipped_norm": said["clipped_norm"],
        "applied": [[copy["grad"][0] for copy in copies] for copies in said["applied"]],
        "parameters": [[copy["param"][0] for copy in copies] for copies in said["param_after"]],
    }
    return {row["id"]: gap([row["values"][name] for name in flat], list(flat.values()))}


def _skipped(row: Row, scene: Mapping[str, Any], learning_rate: float) -> dict[str, float]:
    """The calculator knows two protocols; what only goes wrong in real reductions has no counterpart in it."""
    protocol = {"coordinated": "coordinated", "alone": "uncoordinated", "own_scale": "uncoordinated"}.get(row["path"])
    if protocol is None:
        return {}
    body = {
        "scaled_grads": [[copy["scaled"] for copy in copies] for copies in scene["ranks"]],
        "params": [[1]] * len(scene["ranks"]),
        "scale": scene["scales"],
        "lr": learning_rate,
    }
    if row["path"] == "own_scale":
        body["reduce"] = "mean"
    said = _answer("overflow_skip", body)[protocol]
    decisions = said["decision_per_rank"] if protocol == "uncoordinated" else [said["decision"]] * len(scene["ranks"])
    calculated = [said["params"], said["next_scale"], [decision == "step" for decision in decisions]]
    updated = [decision == "update" for decision in cast(list[str], row["values"]["decision"])]
    return {row["id"]: gap([row["values"]["parameters"], row["values"]["next_scale"], cast(Json, updated)], calculated)}


_SCALING: dict[str, dict[str, str]] = {
    "sum": {"all_reduce": "sum", "scale": "none"},
    "mean": {"all_reduce": "mean", "scale": "none"},
    "sum_gradient_scaled": {"all_reduce": "sum", "scale": "gradient"},
    "mean_loss_scaled": {"all_reduce": "mean", "scale": "loss"},
}


def _gradient_scaling(setup: Values, rows: Sequence[Row]) -> dict[str, float]:
    """Equal micro-batches only: where they are unequal there is no factor to calculate."""
    differences = {}
    for row in rows:
        case, path = cast(dict[str, dict[str, Any]], setup["cases"])[row["case"]], _SCALING.get(row["path"])
        if path is None or len(set(case["micro_batches"])) > 1:
            continue
        count, replicas = len(case["micro_batches"]), case["replicas"]
        body = {"batch": case["samples"], "micro_batches": count, "replicas": replicas, "loss_reduction": "mean"} | path
        stages = {stage["name"]: stage["multiple_value"] for stage in _answer("gradient_scaling", body)["stages"]}
        measured: list[Json] = [row["values"]["accumulated_factor"], row["values"]["factor"]]
        differences[row["id"]] = gap(measured, [stages["accumulated"], stages["final"]])
    return differences


def _answer(name: str, body: Mapping[str, Any]) -> dict[str, Any]:
    calculator: Any = import_module(f"samestep.app.calculators.{name}")
    answer: dict[str, Any] = calculator.compute(calculator.Inputs.model_validate(body)).model_dump(mode="json")
    return answer


_COMPARISONS: dict[str, Callable[[Values, Sequence[Row]], dict[str, float]]] = {
    "info_nce": _info_nce,
    "clip_ownership": _clip_ownership,
    "gradient_scaling": _gradient_scaling,
}
