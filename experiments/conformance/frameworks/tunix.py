"""Tunix: its PeftTrainer on sharded JAX arrays, whose own loss is a token mean of each micro-step; and its
aggregations.

The model is the table; `positions` carry the row of every token, as the trainer hands them through. Tunix computes in
float32.
"""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh
from tunix.rl import common
from tunix.sft import peft_trainer

from samestep.app.evidence.bags import Text
from samestep.experiments.conformance.adapter import Coefficients, Expected, Measurement, Setting
from samestep.experiments.conformance.layout import VOCABULARY, Layout
from samestep.experiments.conformance.scenarios import Scenario

LABELS = ("virtual devices in one process",)
TOLERANCE = 1e-6
WIDTH = 8
_AGGREGATED: dict[str, tuple[Text, Text, Expected]] = {
    "token-mean": (
        {"zh": "aggregate_loss，token-mean", "en": "aggregate_loss, token-mean"},
        {"zh": "分母是这个微步的 token 数。", "en": "The denominator is the tokens of the micro-step."},
        "global_token_mean",
    ),
    "sequence-mean-token-mean": (
        {"zh": "aggregate_loss，sequence-mean-token-mean", "en": "aggregate_loss, sequence-mean-token-mean"},
        {"zh": "先按序列求均值，再对序列平均。", "en": "A mean in each sequence and a mean over sequences."},
        "sequence_mean",
    ),
    "seq-mean-token-sum": (
        {"zh": "aggregate_loss，seq-mean-token-sum", "en": "aggregate_loss, seq-mean-token-sum"},
        {"zh": "每条序列求和，再除以序列数。", "en": "Each sequence is summed and divided by the number of sequences."},
        "sequence_sum",
    ),
    "sequence-mean-token-scale": (
        {"zh": "aggregate_loss，sequence-mean-token-scale", "en": "aggregate_loss, sequence-mean-token-scale"},
        {
            "zh": "不给 norm 时除以补齐后的宽度：分母与标签数无关。",
            "en": "Unless a norm is given it divides by the padded width, however few labels there are.",
        },
        "constant",
    ),
}
SETTINGS = (
    Setting(
        "default",
        {"zh": "PeftTrainer 默认", "en": "PeftTrainer, defaults"},
        {
            "zh": "默认损失在全局数组上求均值，gradient_accumulation_steps 是 optax.MultiSteps：每个微步一样重；"
            "不满的最后一窗留在累积器里，训练结束就丢了。",
            "en": "The default loss is a mean over the global array, and gradient_accumulation_steps is "
            "optax.MultiSteps: micro-steps weigh the same. A partial last window stays in the accumulator and is lost "
            "when training ends.",
        },
        {
            "A": "global_token_mean",
            "B": "micro_step_equal",
            "C": "global_token_mean",
            "D": "dropped",
            "E": "micro_step_equal",
        },
        labels=LABELS,
        tolerance=TOLERANCE,
    ),
    *(
        Setting(f"aggregate_{name.replace('-', '_')}", title, about, {"T": expected}, tolerance=TOLERANCE)
        for name, (title, about, expected) in _AGGREGATED.items()
    ),
)


class Table(nnx.Module):
    """Logits of a row that the position names."""

    def __init__(self, ids: int) -> None:
        self.weight = nnx.Param(jnp.zeros((ids, VOCABULARY)))

    def __call__(self, tokens: Any, positions: Any, cache: Any, attention_mask: Any) -> Any:
        return self.weight[positions], None


def run(setting: str, scenario: Scenario, rank: int, world_size: int) -> Measurement:
    if setting.startswith("aggregate_"):
        return aggregated(setting.removeprefix("aggregate_").replace("_", "-"), scenario)
    before = Layout(scenario.before)
    window = Layout(scenario.counts, first=before.end)
    table = Table(window.end)
    accumulated = {"gradient_accumulation_steps": scenario.accumulation} if scenario.accumulation > 1 else {}
    config = peft_trainer.TrainingConfig(
        eval_every_n_steps=1000, max_steps=100, data_sharding_axis=("fsdp",), **accumulated
    )
    trainer = peft_trainer.PeftTrainer(table, optax.sgd(1.0), config)
    trainer.with_gen_model_input_fn(lambda batch: batch)
    with Mesh(np.array(jax.devices()), ("fsdp",)):
        trainer.train([*batches(before), *batches(window)])
    return Coefficients(*window.found(-np.asarray(table.weight.value), [before]), positions=window.width)


def batches(window: Layout) -> Iterator[dict[str, Any]]:
    """A micro-step of all ranks; the loss is of token t + 1 at position t, so tokens are moved by one."""
    ranks = range(len(window.counts))
    for k in range(len(window.counts[0]) if window.counts else 0):
        ids = np.array([[*window.numbers(rank, k), 0] for rank in ranks])
        labels = np.array([[0, *window.targets(rank, k)] for rank in ranks])
        valid = labels >= 0
        valid[:, 0] = False
        mask = jnp.array(valid.astype(np.int32))
        yield {
            "input_tokens": jnp.array(np.where(valid, labels, 0)),
            "input_mask": mask,
            "positions": jnp.array(ids),
            "attention_mask": mask,
        }


def aggregated(mode: str, scenario: Scenario) -> Coefficients:
    """The derivative of an aggregation with respect to every token's loss, in one micro-step of several sequences."""
    (rank,) = scenario.lengths
    (lengths,) = rank
    mask = jnp.array([[position < n for position in range(WIDTH)] for n in lengths], dtype=jnp.float32)
    gradient = np.asarray(jax.grad(lambda losses: common.aggregate_loss(losses, mask, mode))(jnp.zeros(mask.shape)))
    tokens = [float(value) for row, n in zip(gradient, lengths, strict=True) for value in row[:n]]
    return Coefficients([[tokens]], 0.0, positions=WIDTH)
