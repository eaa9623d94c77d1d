"""Lightning: the Trainer under ddp with a sampler of its own, the Trainer with the global recipe, and Fabric."""

import logging
from collections.abc import Sequence
from typing import cast

import torch
from lightning import Fabric, LightningModule, Trainer
from lightning.fabric.strategies import DDPStrategy as FabricDDP
from lightning.pytorch.callbacks import EMAWeightAveraging
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.utilities import grad_norm
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor
from torch.optim.lr_scheduler import LinearLR, LRScheduler
from torch.utils.data import DataLoader, Dataset

from samestep.experiments.conformance.adapter import Counters, Measurement, Setting, process_group
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
    Setting(
        "scheduler",
        {"zh": '调度器，interval="step"', "en": 'scheduler, interval="step"'},
        {
            "zh": 'interval="step" 数的是更新，不是微批：累积时调度器仍每次更新走一步。',
            "en": 'With interval="step" it counts updates and not micro-batches: one step an update, also where they '
            "accumulate.",
        },
        dict.fromkeys(("counters", "counters_accumulated"), "per_update"),
    ),
    Setting(
        "ema",
        {"zh": "EMAWeightAveraging 回调", "en": "the callback EMAWeightAveraging"},
        {
            "zh": "每次更新平均一次；没有更新的微批不算。",
            "en": "One average an update; micro-batches without one are left out.",
        },
        dict.fromkeys(("counters", "counters_accumulated"), "per_update"),
    ),
)


def run(setting: str, scenario: Scenario, rank: int, world_size: int) -> Measurement | None:
    """Train the windows of the scenario as one epoch, and read the table."""
    process_group()
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    if scenario.kind is Kind.COUNTERS:
        return counters(setting, scenario, world_size)
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


def counters(setting: str, scenario: Scenario, world_size: int) -> Counters:
    """What the scheduler, or the moving average, counts in a run of the Trainer."""
    task, average = Counted(), EMAWeightAveraging()
    trainer = Trainer(
        accelerator="cpu",
        devices=world_size,
        strategy=DDPStrategy(process_group_backend="gloo"),
        max_epochs=1,
        accumulate_grad_batches=scenario.accumulation,
        callbacks=[average] if setting == "ema" else [],
        use_distributed_sampler=False,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(task, DataLoader(cast(Dataset[Tensor], torch.zeros(len(scenario.counts[0]), 1)), batch_size=1))
    if setting == "ema":
        averaged = average._average_model  # it tells nobody how often it averaged
        return Counters("ema", len(task.rates), int(averaged.n_averaged) if averaged else 0)
    scheduler = cast(LRScheduler, task.lr_schedulers())
    return Counters("scheduler", len(task.rates), scheduler.last_epoch, task.rates)


class Counted(LightningModule):
    """`rates`: the learning rate of every update."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.rates: list[float] = []

    def training_step(self, batch: Tensor, _: int) -> Tensor:
        loss: Tensor = self.layer(batch).sum()
        return loss

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        sgd = torch.optim.SGD(self.parameters(), lr=1.0)
        sgd.register_step_pre_hook(lambda optimizer, *_: self.rates.append(optimizer.param_groups[0]["lr"]))
        decay = LinearLR(sgd, 1.0, 0.0, total_iters=8)
        return {"optimizer": sgd, "lr_scheduler": {"scheduler": decay, "interval": "step"}}


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
