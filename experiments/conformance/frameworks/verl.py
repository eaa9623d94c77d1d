"""verl: its losses, its micro-batches and its backward, over torch DDP.

`FSDPEngine.forward_backward_batch`, `ppo_loss`, `sft_loss` and `agg_loss` are real; the engine that they run on is a
stand-in, and its parameters are the log-probabilities of the tokens, so that a token's gradient is its coefficient. DDP
averages gradients as FSDP does.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
import verl.workers.engine.fsdp.transformer_impl as engines
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from verl.trainer.ppo import core_algos
from verl.utils import tensordict_utils
from verl.workers.config import ActorConfig
from verl.workers.utils.losses import ppo_loss, sft_loss

from samestep.experiments.conformance.adapter import Coefficients, Expected, Measurement, Setting, process_group
from samestep.experiments.conformance.scenarios import Scenario

START = -1.0
"""Every log-probability before the update."""
LABELS = ("stubbed", "patched device")


def _longest_cells() -> tuple[tuple[tuple[float, ...], ...], ...]:
    """Scenario S by a sum over each sequence ÷ (sequences · longest of the own micro-batch): 8, 5 | 6, 4."""
    return tuple(tuple((1 / (8 * n),) * 2 for n in rank) for rank in ((8, 5), (6, 4)))


def _setting(id: str, zh: tuple[str, str], en: tuple[str, str], expected: Expected) -> Setting:
    return Setting(id, {"zh": zh[0], "en": en[0]}, {"zh": zh[1], "en": en[1]}, {"S": expected}, labels=LABELS)


SETTINGS = (
    _setting(
        "token_mean",
        ("ppo_loss，token-mean（默认）", "先数好整个小批所有卡的 token，损失乘数据并行的份数：全局 token 平均。"),
        (
            "ppo_loss, token-mean (default)",
            "Tokens of the mini-batch are counted over all ranks first, and the loss is multiplied by their number: "
            "the global token mean.",
        ),
        "global_token_mean",
    ),
    _setting(
        "sft",
        ("sft_loss", "同样的计数。"),
        ("sft_loss", "The same count."),
        "global_token_mean",
    ),
    _setting(
        "token_sum",
        ("ppo_loss，token-sum", "求和，不除。"),
        ("ppo_loss, token-sum", "A sum that nothing divides."),
        "global_token_mean*N",
    ),
    _setting(
        "seq_mean_token_sum",
        ("ppo_loss，seq-mean-token-sum", "对序列求和，再除以全局序列数。"),
        ("ppo_loss, seq-mean-token-sum", "The sum over a sequence, divided by the global number of sequences."),
        "sequence_sum",
    ),
    _setting(
        "seq_mean_token_mean",
        ("ppo_loss，seq-mean-token-mean", "每条序列的 token 均值，再除以全局序列数。"),
        (
            "ppo_loss, seq-mean-token-mean",
            "The token mean of each sequence, divided by the global number of sequences.",
        ),
        "sequence_mean",
    ),
    _setting(
        "seq_mean_token_sum_norm",
        (
            "ppo_loss，seq-mean-token-sum-norm（“Dr. GRPO”），loss_scale_factor 不设",
            "默认的除数是张量的宽度：本微批里最长的回答。同一条序列和谁放在一起，决定了它多重。",
        ),
        (
            "ppo_loss, seq-mean-token-sum-norm (“Dr. GRPO”), loss_scale_factor unset",
            "By default it divides by the width of a tensor: the longest response of the own micro-batch. Whom a "
            "sequence shares a micro-batch with decides what it weighs.",
        ),
        _longest_cells(),
    ),
    _setting(
        "agg_loss_alone",
        (
            "agg_loss token-mean，没有小批的总数",
            "不给总数时按本微批平均，再乘微批与小批的样本比（按公开讨论还原的旧 dp_actor 写法，不是它的代码）。",
        ),
        (
            "agg_loss token-mean, without the mini-batch's totals",
            "Without totals it is a mean over the micro-batch, times the share of its samples (the legacy dp_actor's "
            "way, rebuilt from the public thread and not its code).",
        ),
        "microbatch_equal",
    ),
)


class LogProbabilities(nn.Module):
    """One parameter a token."""

    def __init__(self, tokens: int) -> None:
        super().__init__()
        self.values = nn.Parameter(torch.full((tokens,), START, dtype=torch.float64))

    def forward(self, ids: Tensor) -> Tensor:
        return self.values[ids]


def run(setting: str, scenario: Scenario, rank: int, world_size: int) -> Measurement:
    """The gradient of one mini-batch of two micro-batches a rank."""
    process_group()
    engines.get_device_id = lambda: "cpu"
    engines.postprocess_batch_func = lambda output_lst, indices, data: output_lst
    model = DistributedDataParallel(LogProbabilities(scenario.total))
    mine = sequences(scenario)[rank]
    if setting == "agg_loss_alone":
        alone(model, scenario, mine)
    else:
        loss = partial(sft_loss, None) if setting == "sft" else partial(ppo_loss, configured(setting))
        engines.FSDPEngine.forward_backward_batch(stand_in(model), batch(scenario, mine), loss)
    gradient = model.module.values.grad
    values = iter((-gradient + 0.0).tolist())
    return Coefficients([[[next(values) for _ in range(n)] for n in counts] for counts in scenario.counts], 0.0)


def configured(setting: str) -> Any:
    mode = setting.replace("_", "-")
    return ActorConfig(strategy="fsdp2", rollout_n=1, ppo_micro_batch_size_per_gpu=2, loss_agg_mode=mode)


def sequences(scenario: Scenario) -> list[list[Tensor]]:
    """Ids of each sequence, by rank."""
    numbers: Iterator[int] = iter(range(scenario.total))
    return [
        [torch.tensor([next(numbers) for _ in range(n)]) for cell in rank for n in cell] for rank in scenario.sequences
    ]


def nested(parts: list[Tensor]) -> Tensor:
    return torch.nested.as_nested_tensor(parts, layout=torch.jagged)


def batch(scenario: Scenario, mine: list[Tensor]) -> Any:
    """A mini-batch as the trainer hands it over: a prompt of one token, a response, nothing masked."""
    prompt = torch.zeros(1, dtype=torch.long)
    lengths = [len(ids) for ids in mine]
    held = {
        "prompts": nested([prompt] * len(mine)),
        "responses": nested(mine),
        "response_mask": nested([torch.ones(n, dtype=torch.long) for n in lengths]),
        "old_log_probs": nested([torch.full((n,), START, dtype=torch.float64) for n in lengths]),
        "advantages": nested([torch.ones(n, dtype=torch.float64) for n in lengths]),
        "loss_mask": nested([torch.cat([prompt, torch.ones(n, dtype=torch.long)]) for n in lengths]),
        "input_ids": nested([torch.cat([prompt, ids]) for ids in mine]),
    }
    everybody = sum(len(cell) for rank in scenario.sequences for cell in rank)
    sizes = {"use_dynamic_bsz": False, "micro_batch_size_per_gpu": 2, "global_batch_size": everybody}
    return tensordict_utils.get_tensordict(held, non_tensor_dict=sizes)


def stand_in(model: DistributedDataParallel) -> Any:
    """What `forward_backward_batch` asks of its engine."""

    def step(microbatch: Any, loss_function: Callable[..., Any], forward_only: bool) -> tuple[Tensor, Any]:
        nothing = model.module.values.new_zeros(1)  # position t holds the log-probability of token t + 1
        values = torch.cat([torch.cat([model(ids), nothing]) for ids in microbatch["responses"].unbind()])
        found = torch.nested.nested_tensor_from_jagged(values, microbatch["input_ids"].offsets())
        loss, metrics = loss_function(model_output={"log_probs": found}, data=microbatch, dp_group=dist.group.WORLD)
        return loss, {"metrics": metrics, "loss": float(loss), "model_output": {}}

    def synchronised(is_last_micro_batch: bool) -> AbstractContextManager[object]:
        return nullcontext() if is_last_micro_batch else model.no_sync()

    return SimpleNamespace(
        ulysses_sequence_parallel_size=1,
        get_data_parallel_group=lambda: dist.group.WORLD,
        get_data_parallel_size=dist.get_world_size,
        scaler=None,
        _gradient_sync_context=synchronised,
        forward_step=step,
    )


def alone(model: DistributedDataParallel, scenario: Scenario, mine: list[Tensor]) -> None:
    """agg_loss on each padded micro-batch, times the micro-batch's share of the rank's samples."""
    cells = len(scenario.counts[0])
    size = len(mine) // cells
    for k in range(cells):
        part = mine[k * size : (k + 1) * size]
        width = max(map(len, part))
        mask = torch.stack([(torch.arange(width) < len(ids)).double() for ids in part])
        with nullcontext() if k == cells - 1 else model.no_sync():
            values = [torch.cat([model(ids), torch.zeros(width - len(ids), dtype=torch.float64)]) for ids in part]
            loss = core_algos.agg_loss(-torch.stack(values), mask, "token-mean") * (size / len(mine))
            loss.backward()
