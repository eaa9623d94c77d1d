"""Megatron-Core: what its schedule divides a loss by, told by what the loss function returns.

One process, the schedule without pipelining, and no gradient finalisation, so that nothing but the schedule divides.
The schedule asks for CUDA's current device, and is given the CPU. The whole step is measured in `megatron_core`.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.enums import ModelType
from megatron.core.pipeline_parallel import schedules
from megatron.core.transformer import TransformerConfig
from torch import Tensor, nn

from samestep.app.evidence.bags import Text
from samestep.experiments.conformance.adapter import Coefficients, Measurement, Setting, process_group
from samestep.experiments.conformance.frameworks.bigram_training import mean, summed
from samestep.experiments.conformance.reader import IGNORED, Bigram, Tokens
from samestep.experiments.conformance.scenarios import Scenario

_KINDS: dict[str, tuple[Text, Text, str]] = {
    "sum_and_count": (
        {"zh": "返回（和，标签数，…），默认", "en": "returns (sum, count, …), defaults"},
        {
            "zh": "三个返回值：调度把和除以这个微批的标签数，再除以微批数，于是每个微批一样重。",
            "en": "Three values: the schedule divides the sum by the micro-batch's own count and by the number of "
            "micro-batches, so each weighs the same.",
        },
        "microbatch_equal",
    ),
    "per_token": (
        {
            "zh": "返回（和，标签数，…），calculate_per_token_loss=True",
            "en": "returns (sum, count, …), calculate_per_token_loss=True",
        },
        {
            "zh": "调度不再除：和原样反传，除以全部标签数是梯度收尾（finalize_model_grads）的事，这里没有它。",
            "en": "The schedule divides no more: sums go backward as they are, and to divide by all labels is left to "
            "finalize_model_grads, which does not run here.",
        },
        "global_token_mean*N",
    ),
    "already_global": (
        {"zh": "返回（和 ÷ N，…）", "en": "returns (sum ÷ N, …)"},
        {
            "zh": "两个返回值：损失已经是窗口均值的一部分，调度仍再除以微批数，更新小到 1/K。",
            "en": "Two values: the loss is its part of the window's mean already, and the schedule divides by the "
            "number of micro-batches all the same: the update is 1/K of its size.",
        },
        "global_token_mean*1/K",
    ),
    "local_mean": (
        {"zh": "返回（微批均值，…）", "en": "returns (mean of the micro-batch, …)"},
        {
            "zh": "均值再除以微批数：每个微批一样重。",
            "en": "A mean over the number of micro-batches: each weighs the same.",
        },
        "microbatch_equal",
    ),
    "recipe": (
        {"zh": "配方：返回（和 × K ÷ N，…）", "en": "recipe: returns (sum × K ÷ N, …)"},
        {"zh": "先乘 K，抵消调度的除法。", "en": "K comes first, and the schedule divides it away."},
        "global_token_mean",
    ),
}
SETTINGS = tuple(
    Setting(name, title, about, {"M": expected}, labels=("patched device", "no finalisation"))
    for name, (title, about, expected) in _KINDS.items()
)


class Model(Bigram):
    """The table, with what the schedule asks of a model."""

    def __init__(self, ids: int, config: TransformerConfig) -> None:
        super().__init__(ids)
        self.config = config
        self.share_embeddings_and_output_weights = False
        self.model_type = ModelType.encoder_or_decoder

    def set_input_tensor(self, tensor: Tensor | None) -> None:
        """Nothing comes from another stage."""


def _on_the_cpu(made: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def here(*values: Any, **given: Any) -> Tensor:
        return made(*values, **{**given, "device": "cpu"} if "device" in given else given)

    return here


def prepare() -> None:
    process_group()
    parallel_state.initialize_model_parallel(create_gloo_process_groups=True)
    torch.cuda.current_device = lambda: 0
    torch.cuda.current_stream = lambda *_: None  # type: ignore[assignment]  # only asked for, never used
    torch.zeros, torch.tensor = _on_the_cpu(torch.zeros), _on_the_cpu(torch.tensor)
    torch.Tensor.cuda = lambda tensor, *_, **__: tensor  # type: ignore[method-assign]


def run(setting: str, scenario: Scenario, rank: int, world_size: int) -> Measurement:
    """The gradient of one window."""
    model = Model(Tokens(scenario.counts).end, config(setting))
    schedule(setting, scenario, rank, model)
    if model.weight.grad is None:
        raise RuntimeError("the schedule left no gradient")
    return Coefficients(*Tokens(scenario.counts).read(model.weight.grad))


def config(setting: str, **more: Any) -> TransformerConfig:
    return TransformerConfig(
        num_layers=1,
        hidden_size=8,
        num_attention_heads=1,
        calculate_per_token_loss=setting.endswith("per_token"),
        deallocate_pipeline_outputs=False,
        **more,
    )


def schedule(setting: str, scenario: Scenario, rank: int, model: nn.Module) -> None:
    """One window of this rank, forward and backward."""
    window, cells = Tokens(scenario.counts), len(scenario.counts[rank])
    schedules.forward_backward_no_pipelining(
        forward_step_func=forward(setting, scenario),
        data_iterator=((window.ids(rank, k), window.labels(rank, k)) for k in range(cells)),
        model=model,
        num_microbatches=cells,
        seq_length=window.width,
        micro_batch_size=1,
        forward_only=False,
    )


def forward(setting: str, scenario: Scenario) -> Callable[[Iterator[tuple[Tensor, Tensor]], nn.Module], Any]:
    """What the schedule calls for each micro-batch: the output, and the function of it that is the loss."""

    def step(batches: Iterator[tuple[Tensor, Tensor]], model: nn.Module) -> Any:
        ids, labels = next(batches)

        def loss(logits: Tensor) -> tuple[Any, ...]:
            if setting in ("sum_and_count", "per_token"):
                return summed(logits, labels), (labels != IGNORED).sum().int(), {}
            if setting == "local_mean":
                return mean(logits, labels), {}
            times = scenario.accumulation * len(scenario.counts) if setting == "recipe" else 1
            return summed(logits, labels) * times / scenario.total, {}

        return model(ids), loss

    return step
