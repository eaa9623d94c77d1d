"""Megatron-Core's whole gradient on two processes: its schedule, DistributedDataParallel, and finalize_model_grads.

What the schedule alone divides by is measured in `megatron_core_schedule`; here gradients are reduced over ranks and
finished, as an optimizer is given them. Finalising multiplies by a float32, 1/N.
"""

from typing import cast

from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from torch import Tensor

from samestep.app.evidence.bags import Text
from samestep.experiments.conformance.adapter import Coefficients, Measurement, Setting
from samestep.experiments.conformance.frameworks import megatron_core_schedule as alone
from samestep.experiments.conformance.reader import Tokens
from samestep.experiments.conformance.scenarios import Scenario

TOLERANCE = 1e-6
_KINDS: dict[str, tuple[Text, Text, str, str]] = {
    "sum_and_count": (
        {"zh": "返回（和，标签数，…），默认", "en": "returns (sum, count, …), defaults"},
        {
            "zh": "调度除以微批自己的标签数和微批数，DDP 再除以进程数：每个微批一样重。",
            "en": "The schedule divides by the micro-batch's own count and by the number of micro-batches, DDP by the "
            "number of processes: each micro-batch weighs the same.",
        },
        "microbatch_equal",
        "microbatch_equal",
    ),
    "per_token": (
        {
            "zh": "返回（和，标签数，…），calculate_per_token_loss=True",
            "en": "returns (sum, count, …), calculate_per_token_loss=True",
        },
        {
            "zh": "调度与 DDP 都不再除；finalize_model_grads 把各卡的标签数加起来，除一次。",
            "en": "Neither schedule nor DDP divides; finalize_model_grads adds up the counts of all ranks and divides "
            "once.",
        },
        "global_token_mean",
        "global_token_mean",
    ),
    "already_global": (
        {"zh": "返回（和 ÷ N，…）", "en": "returns (sum ÷ N, …)"},
        {
            "zh": "损失已经除过全部标签数，调度仍除以微批数，DDP 仍除以进程数。",
            "en": "The loss is over all labels already; the schedule still divides by the number of micro-batches, and "
            "DDP by that of processes.",
        },
        "global_token_mean*1/P",
        "global_token_mean*1/(P*K)",
    ),
    "already_global_per_token": (
        {
            "zh": "返回（和 ÷ N，…），calculate_per_token_loss=True",
            "en": "returns (sum ÷ N, …), calculate_per_token_loss=True",
        },
        {
            "zh": "没有返回标签数，收尾时就不除；DDP 也不除，调度却照样除以微批数。",
            "en": "No count is returned, so finalising does not divide, nor does DDP; but the schedule still does, by "
            "the number of micro-batches.",
        },
        "global_token_mean",
        "global_token_mean*1/K",
    ),
    "recipe": (
        {"zh": "配方：返回（和 × K × P ÷ N，…）", "en": "recipe: returns (sum × K × P ÷ N, …)"},
        {
            "zh": "先乘 K 与 P，抵消调度和 DDP 的除法。",
            "en": "K and P come first, and schedule and DDP divide them away.",
        },
        "global_token_mean",
        "global_token_mean",
    ),
}
"""Title, what it does, and the verdicts without and with accumulation."""
SETTINGS = tuple(
    Setting(
        name,
        title,
        about,
        {**dict.fromkeys("AC", single), **dict.fromkeys("BE", accumulated)},
        labels=("patched device",),
        tolerance=TOLERANCE,
    )
    for name, (title, about, single, accumulated) in _KINDS.items()
)
prepare = alone.prepare


def run(setting: str, scenario: Scenario, rank: int, world_size: int) -> Measurement:
    """The gradient of one window."""
    config = alone.config(setting, finalize_model_grads_func=finalize_model_grads)
    window = Tokens(scenario.counts)
    table = alone.Model(window.end, config)
    model = DistributedDataParallel(config, DistributedDataParallelConfig(), table)
    config.no_sync_func = model.no_sync
    alone.schedule(setting, scenario, rank, model)
    gradient = cast(Tensor, table.weight.main_grad)  # type: ignore[attr-defined]  # what its optimizer reads
    return Coefficients(*window.read(gradient))
