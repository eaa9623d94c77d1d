"""PaddlePaddle: DataParallel over Gloo, and what its cross entropy divides by where some labels are ignored."""

import os
from contextlib import nullcontext
from typing import Any

import numpy as np
import paddle
import paddle.distributed as dist
from paddle.nn import functional

from samestep.experiments.conformance.adapter import Coefficients, Measurement, Setting
from samestep.experiments.conformance.layout import IGNORED, VOCABULARY, Layout
from samestep.experiments.conformance.scenarios import Scenario

POSITIVE = 255
"""A label to ignore that is not negative."""
SETTINGS = (
    Setting(
        "mean",
        {"zh": "cross_entropy 默认（ignore_index=-100）", "en": "cross_entropy, defaults (ignore_index=-100)"},
        {
            "zh": "被忽略的位置没有损失，却留在均值的分母里：负的 ignore_index 一律除以全部位置数，与标签数无关。",
            "en": "Ignored positions have no loss and stay in the mean's denominator: with a negative ignore_index "
            "it is the number of positions, however few labels there are.",
        },
        {"A": "constant", "B": "constant", "C": "constant", "D": "constant*1/K", "E": "constant"},
    ),
    Setting(
        "mean_positive",
        {"zh": "cross_entropy，ignore_index=255", "en": "cross_entropy with ignore_index=255"},
        {
            "zh": "同一个函数，要忽略的标签不是负数，分母就是有标签的位置数：微批等权。",
            "en": "The same function with an ignored label that is not negative divides by the labels that are there: "
            "micro-batches weigh the same.",
        },
        {"A": "microbatch_equal", "B": "microbatch_equal", "D": "microbatch_equal*1/K"},
    ),
    Setting(
        "recipe",
        {"zh": "配方：损失之和 × P ÷ N", "en": "recipe: sum of losses × P ÷ N"},
        {
            "zh": "DataParallel 对各卡取平均，所以和要先乘 P；N 是整个窗口的标签数。",
            "en": "DataParallel averages over ranks, so the sum is multiplied by P first; N are the labels of the "
            "whole window.",
        },
        dict.fromkeys("ABCDE", "global_token_mean"),
    ),
)


class Table(paddle.nn.Layer):
    """Float64, zero at first."""

    def __init__(self, ids: int) -> None:
        super().__init__()
        zero = paddle.nn.initializer.Constant(0.0)
        self.weight = self.create_parameter([ids, VOCABULARY], dtype="float64", default_initializer=zero)

    def forward(self, ids: Any) -> Any:
        return paddle.gather(self.weight, ids)


def prepare() -> None:
    """Join, in Paddle's own variables."""
    rank, port = int(os.environ["RANK"]), int(os.environ["MASTER_PORT"])
    places = [f"127.0.0.1:{port + each}" for each in range(int(os.environ["WORLD_SIZE"]))]
    os.environ |= {
        "PADDLE_TRAINER_ID": str(rank),
        "PADDLE_TRAINERS_NUM": os.environ["WORLD_SIZE"],
        "PADDLE_CURRENT_ENDPOINT": places[rank],
        "PADDLE_TRAINER_ENDPOINTS": ",".join(places),
        "PADDLE_MASTER": places[0],
        "PADDLE_DISTRI_BACKEND": "gloo",
    }
    paddle.set_device("cpu")
    dist.init_parallel_env()


def run(setting: str, scenario: Scenario, rank: int, world_size: int) -> Measurement:
    """Train the windows of the scenario by SGD, learning rate 1."""
    before = Layout(scenario.before)
    window = Layout(scenario.counts, first=before.end)
    table = Table(window.end)
    model = paddle.DataParallel(table)
    optimizer = paddle.optimizer.SGD(1.0, parameters=table.parameters())
    for layout in (before, window) if scenario.before else (window,):
        step(setting, model, layout, scenario.accumulation, rank)
        optimizer.step()
        optimizer.clear_grad()
    return Coefficients(*window.found(-table.weight.numpy(), [before]), positions=window.width)


def step(setting: str, model: Any, window: Layout, accumulation: int, rank: int) -> None:
    """The gradients of one window; micro-batches before the last keep theirs to the rank."""
    cells = len(window.counts[rank])
    total = sum(map(sum, window.counts))
    for k in range(cells):
        with nullcontext() if k == cells - 1 else model.no_sync():
            logits = model(paddle.to_tensor(np.array(window.numbers(rank, k))))
            labels = np.array(window.targets(rank, k))
            if setting == "recipe":
                losses = functional.cross_entropy(logits, paddle.to_tensor(labels), reduction="sum")
                loss = losses * dist.get_world_size() / total
            elif setting == "mean_positive":
                moved = paddle.to_tensor(np.where(labels == IGNORED, POSITIVE, labels))
                loss = functional.cross_entropy(logits, moved, ignore_index=POSITIVE) / accumulation
            else:
                loss = functional.cross_entropy(logits, paddle.to_tensor(labels)) / accumulation
            loss.backward()
