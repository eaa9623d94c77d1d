"""Rows: what was found, beside what is expected of it. Controls: could a row have passed for the wrong reason?"""

from typing import cast

import torch

from samestep.app.evidence.bags import DIFFERS, Control, Expectation, Json, Row, Text
from samestep.experiments.results import control, row
from samestep.experiments.tiny.tiny_transformer import PARAMETERS, parameter_count
from samestep.experiments.transformer_update.findings import FOUR_TIMES, MAX_NORM, SKIPS, TITLES, Finding, norm_of
from samestep.experiments.transformer_update.paths import CASES, PATHS, Named, Share, labels, reference, whole_batch
from samestep.experiments.transformer_update.start import WINDOWS, Start

NOTES: dict[str, Text] = {
    FOUR_TIMES: {
        "zh": "裁剪之后看不出差别：要在裁剪之前比较梯度",
        "en": "after the clip nothing shows: compare gradients before it",
    },
    "zero_loss_step": {
        "zh": "梯度恰为 0，AdamW 仍因衰减与历史矩移动权重并推进步数",
        "en": "the gradient is exactly 0, yet AdamW moves weights by decay and moments and counts a step",
    },
    "empty_mean": {
        "zh": "损失是 NaN；框架的交叉熵仍给出梯度，等于把空均值当作 0",
        "en": "the loss is NaN; the framework's cross-entropy still gives a gradient, as if the empty mean were 0",
    },
}


def compare(key: tuple[str, str, str], processes: list[Finding]) -> Row:
    """One row: what the first process found, provided that all processes have the same bits."""
    case, name, optimizer = key
    first = processes[0]
    alike = all((found.digests, found.differences) == (first.digests, first.differences) for found in processes)
    path = PATHS.get(name)
    communicated = (first.collectives > 0) == (path is not None and path.ddp)
    expectation, expected, note = expectations(case, name, optimizer)
    return row(
        case,
        name,
        path.title if path else TITLES[name],
        expectation,
        first.differences,
        expected=expected,
        optimizer=optimizer or None,
        also=alike and communicated,
        note=note,
        values={
            "loss": first.loss,
            "processes_agree": alike,
            "collectives": first.collectives,
            "ranks": [cast(Json, found.digests) for found in processes],
        },
    )


def expectations(case: str, name: str, optimizer: str) -> tuple[Expectation, dict[str, Expectation], Text | None]:
    """A row's expectation, the quantities that behave otherwise, and what a reader should know."""
    if name == FOUR_TIMES:
        return "agrees", {"gradient": "differs"}, NOTES[name]
    if name in SKIPS:
        moves = name == "zero_loss_step" and optimizer == "adamw"
        return "differs" if moves else "agrees", {}, NOTES[name] if moves else None
    path = PATHS[name]
    expectation = path.behaviour[case]
    otherwise: dict[str, Expectation] = {"step": "agrees"} if optimizer == "adamw" else {}
    if expectation == "undefined" and optimizer and not path.nan_gradient:
        moved = ("gradient", "weights", *(("exp_avg", "exp_avg_sq") if optimizer == "adamw" else ()))
        return expectation, otherwise | dict.fromkeys(moved, "differs"), NOTES["empty_mean"]
    return expectation, otherwise, None


def controls(start: Start, rows: list[Row], count: int) -> list[Control]:
    """The model is the stated one, gradients are real derivatives, clipping and no_sync did what they claim."""
    gradient = reference(start.model(), start.windows, CASES["unequal"]).gradient
    norm, parameters = norm_of(gradient), parameter_count(start.model())
    error = abs(finite_difference(start, gradient) / norm - 1)
    seen = {(each["case"], each["path"], each.get("optimizer")): each["values"] for each in rows}
    often = cast(int, seen["unequal", "ddp_global_count", "sgd"]["collectives"])
    once = cast(int, seen["unequal", "ddp_global_count_no_sync", "sgd"]["collectives"])
    rounds = WINDOWS // count
    exactly: Text = {"zh": f"恰有 {PARAMETERS:,} 个参数", "en": f"exactly {PARAMETERS:,} parameters"}
    moves: Text = {"zh": "参考梯度不为零", "en": "the reference gradient is not zero"}
    slopes: Text = {"zh": "梯度与有限差分一致", "en": "the gradient agrees with a finite difference of the loss"}
    active: Text = {"zh": "裁剪确实生效：范数大于阈值", "en": "clipping is active: the norm is above the threshold"}
    saves: Text = {"zh": "no_sync 只在最后一次反传通信", "en": "under no_sync only the last backward communicates"}
    return [
        control("parameters", exactly, parameters == PARAMETERS, parameters=parameters),
        control("moves", moves, norm > DIFFERS, gradient_norm=norm),
        control("finite_difference", slopes, error < 1e-7, gradient_norm=norm, relative_error=error),
        control("clipping_active", active, norm > MAX_NORM, gradient_norm=norm, max_norm=MAX_NORM),
        control("no_sync_saves", saves, 0 < once * rounds <= often, every_backward=often, no_sync=once),
    ]


def finite_difference(start: Start, gradient: Named) -> float:
    """The slope of the loss along its gradient, which should be the gradient's norm."""
    model, norm, step = start.model(), norm_of(gradient), 1e-5
    case = CASES["unequal"]
    share = Share(start.windows[:, :-1], labels(start.windows, case.counts), torch.tensor(case.total), 1)
    losses = []
    with torch.no_grad():
        for sign in (1, -1):
            for name, parameter in model.named_parameters():
                parameter.copy_(torch.from_numpy(start.weights[name]) + sign * step * gradient[name] / norm)
            losses.append(float(whole_batch(model, share)))
    return (losses[0] - losses[1]) / (2 * step)
