"""Lightning: the Trainer under ddp with a sampler of its own, the Trainer with the global recipe, and Fabric."""

import logging
from collections.abc import Sequence

import torch
from lightning import Fabric, LightningModule, Trainer
from lightning.fabric.strategies import DDPStrategy as FabricDDP
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.utilities import grad_norm
from torch import Tensor

from samestep.experiments.conformance.adapter import Measurement, Setting, process_group
from samestep.experiments.conformance.frameworks.bigram_training import (
    MAX_NORM,
    Microbatch,
    State,
    Windows,
    loader,
    mean,
    optimizer_of,
    state,
    state_change,
    summed,
)
from samestep.experiments.conformance.reader import Bigram
from samestep.experiments.conformance.scenarios import Kind, Scenario

MEAN = {**dict.fromkeys("ABCDE", "microbatch_equal"), "D": "microbatch_equal*1/K"}
SETTINGS = (
    Setting(
        "trainer_mean",
        {"zh": "Trainer（ddp），损失取微批均值", "en": "Trainer (ddp) with the mean loss"},
        {
            "zh": "training_step 返回微批的 token 均值；采样器自备，use_distributed_sampler=False，"
            "否则 Trainer 会给加载器换上自己的采样器。",
            "en": "training_step returns the token mean of the micro-batch; the sampler is our own and "
            "use_distributed_sampler=False, because the Trainer would replace it by one of its own.",
        },
        {**MEAN, "F": "moved", "clip": "true_norm"},
    ),
    Setting(
        "trainer_recipe",
        {"zh": "Trainer（ddp），配方：和 × K × P / N", "en": "Trainer (ddp), recipe: sum × K × P / N"},
        {
            "zh": "每个微批带上它所在窗口的有效标签总数 N；training_step 返回损失之和 × K × P / N，"
            "抵消 Trainer 除以的 accumulate_grad_batches 和 DDP 除以的卡数。",
            "en": "Every micro-batch carries N, the labels of its whole window; training_step returns the summed loss "
            "× K × P / N, which undoes the Trainer's division by accumulate_grad_batches and DDP's by the ranks.",
        },
        {**dict.fromkeys("ABCDE", "global_token_mean"), "clip": "true_norm"},
    ),
    Setting(
        "fabric_mean",
        {"zh": "Fabric，用户把均值除以 K", "en": "Fabric, the user divides the mean by K"},
        {
            "zh": "Fabric 不管累积：循环自己写，损失除以 K，最后一个微批之前不同步。",
            "en": "Fabric leaves accumulation to the user: the loop divides the loss by K and holds back "
            "synchronisation until the last micro-batch.",
        },
        MEAN,
    ),
)


def run(setting: str, scenario: Scenario, rank: int, world_size: int) -> Measurement | None:
    """Train the windows of the scenario as one epoch, and read the table."""
    process_group()
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    windows = Windows(scenario)
    if setting == "fabric_mean":
        return windows.coefficients(-fabric(windows, rank, world_size))
    task = Task(windows, recipe=setting == "trainer_recipe")
    trainer = Trainer(
        accelerator="cpu",
        devices=world_size,
        strategy=DDPStrategy(process_group_backend="gloo"),
        max_epochs=1,
        accumulate_grad_batches=scenario.accumulation,
        gradient_clip_val=MAX_NORM if scenario.kind is Kind.CLIPPING else None,
        use_distributed_sampler=False,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(task, loader(flat(windows.of_rank(rank))))
    if scenario.kind is Kind.STATE:
        return state_change(task.states, float(trainer.callback_metrics["loss"]))
    if scenario.kind is Kind.CLIPPING:
        rule = "global_token_mean" if task.recipe else "microbatch_equal"
        return windows.clipping(rule, -task.table.weight, task.norm)
    return windows.coefficients(-task.table.weight)


class Task(LightningModule):
    """`norm`: of the last gradient before clipping; `states`: at the start and after every micro-batch."""

    def __init__(self, windows: Windows, *, recipe: bool) -> None:
        super().__init__()
        self.table, self.scenario, self.recipe = Bigram(windows.ids), windows.scenario, recipe
        self.norm: float | None = None
        self.states: list[State] = []

    def training_step(self, microbatch: Microbatch, _: int) -> Tensor:
        logits: Tensor = self.table(microbatch.ids)
        if self.recipe:
            scale = self.trainer.accumulate_grad_batches * self.trainer.world_size / int(microbatch.valid)
            loss: Tensor = summed(logits, microbatch.labels) * scale
        else:
            loss = mean(logits, microbatch.labels)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return optimizer_of(self.scenario, self.parameters())

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        self.norm = float(grad_norm(self, 2)["grad_2.0_norm_total"])

    def on_train_start(self) -> None:
        self.remember()

    def on_train_batch_end(self, *_: object) -> None:
        self.remember()

    def remember(self) -> None:
        self.states.append(state(self.table.weight, self.optimizers(use_pl_optimizer=False)))


def fabric(windows: Windows, rank: int, world_size: int) -> Tensor:
    """The loop of Fabric's guide to gradient accumulation; gives the table."""
    fabric = Fabric(accelerator="cpu", devices=world_size, strategy=FabricDDP(process_group_backend="gloo"))
    fabric.launch()
    table = Bigram(windows.ids)
    model, optimizer = fabric.setup(table, optimizer_of(windows.scenario, table.parameters()))
    for window in windows.of_rank(rank):
        for k, microbatch in enumerate(window):
            with fabric.no_backward_sync(model, enabled=k < len(window) - 1):
                fabric.backward(mean(model(microbatch.ids), microbatch.labels) / windows.scenario.accumulation)
        optimizer.step()
        optimizer.zero_grad()
    return table.weight


def flat(windows: Sequence[Sequence[Microbatch]]) -> list[Microbatch]:
    return [microbatch for window in windows for microbatch in window]
