"""torch.distributed.pipelining: what a schedule divides gradients by, for a loss that is a mean and for one that is
not.

Two stages, one a process: the table of the bigram model, then a head that adds nothing. The last stage computes the
loss of each micro-batch; the table is in the first, whose gradient tells the coefficients.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.nn import functional

from samestep.app.evidence.bags import Text
from samestep.experiments.conformance.adapter import Coefficients, Measurement, Setting, process_group
from samestep.experiments.conformance.reader import IGNORED, VOCABULARY, Bigram, Tokens
from samestep.experiments.conformance.scenarios import Scenario

SCHEDULES: dict[str, Any] = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}
_NAMES = {"gpipe": "GPipe", "1f1b": "1F1B"}
_KINDS: dict[str, tuple[Text, Text, str]] = {
    "mean": (
        {"zh": "损失取微批均值，默认设置", "en": "mean loss, defaults"},
        {
            "zh": "scale_grads=True：调度把梯度除以微批数，于是每个微批一样重。",
            "en": "scale_grads=True: the schedule divides gradients by the number of micro-batches, so each weighs the "
            "same.",
        },
        "microbatch_equal",
    ),
    "mean_unscaled": (
        {"zh": "损失取微批均值，scale_grads=False", "en": "mean loss, scale_grads=False"},
        {
            "zh": "没有谁除以微批数：各微批的均值相加。",
            "en": "Nobody divides: the means of the micro-batches are added.",
        },
        "microbatch_equal*K",
    ),
    "sum_over_total": (
        {"zh": "损失之和 ÷ N，默认设置", "en": "sum of losses ÷ N, defaults"},
        {
            "zh": "损失已经是整个窗口的均值的一部分，默认设置仍再除以微批数：更新小到 1/K。",
            "en": "The loss is its part of the whole window's mean already, and the default divides by the number of "
            "micro-batches once more: the update is 1/K of its size.",
        },
        "global_token_mean*1/K",
    ),
    "recipe": (
        {"zh": "配方：损失之和 ÷ N，scale_grads=False", "en": "recipe: sum of losses ÷ N, scale_grads=False"},
        {"zh": "和除以 N，调度不再除。", "en": "The sum over N, and a schedule that leaves gradients alone."},
        "global_token_mean",
    ),
}
SETTINGS = tuple(
    Setting(
        f"{schedule}_{kind}",
        {"zh": f"{_NAMES[schedule]}，{title['zh']}", "en": f"{_NAMES[schedule]}, {title['en']}"},
        about,
        {"M": expected},
    )
    for schedule in SCHEDULES
    for kind, (title, about, expected) in _KINDS.items()
)


class Head(nn.Module):
    """The last stage: a stage needs a parameter, and this one is zero."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(VOCABULARY, dtype=torch.float64))

    def forward(self, logits: Tensor) -> Tensor:
        return logits + self.shift


def run(setting: str, scenario: Scenario, rank: int, world_size: int) -> Measurement | None:
    """One update of the pipeline; the first stage reads the table, the last one cannot see it."""
    process_group()
    schedule, _, kind = setting.partition("_")
    window = Tokens(scenario.counts)
    microbatches = range(len(scenario.counts[0]))
    stage = PipelineStage(Bigram(window.end) if rank == 0 else Head(), rank, world_size, torch.device("cpu"))
    given = {} if kind in ("mean", "sum_over_total") else {"scale_grads": False}
    loss = mean if kind.startswith("mean") else over(scenario.total)
    pipeline = SCHEDULES[schedule](stage, n_microbatches=len(microbatches), loss_fn=loss, **given)
    if rank:
        pipeline.step(target=torch.stack([window.labels(0, k) for k in microbatches]), losses=[])
        return None
    optimizer = torch.optim.SGD(stage.submod.parameters(), lr=1.0)
    pipeline.step(torch.stack([window.ids(0, k) for k in microbatches]))
    optimizer.step()
    (weight,) = stage.submod.parameters()
    return Coefficients(*window.read(-weight))


def mean(logits: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)


def over(total: int) -> Callable[[Tensor, Tensor], Tensor]:
    """The summed loss of a micro-batch over the labels of the whole window."""

    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        summed = functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="sum")
        return summed / total

    return loss
