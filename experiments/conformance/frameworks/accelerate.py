"""accelerate: a loop with `accumulate()` as its guide shows it, and the guide's recipe for the global token mean."""

from contextlib import nullcontext
from itertools import islice
from typing import cast

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from accelerate.utils import DataLoaderConfiguration
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, Dataset

from samestep.experiments.conformance.adapter import Counters, Measurement, Setting, process_group
from samestep.experiments.conformance.frameworks.bigram_training import (
    MAX_NORM,
    Windows,
    loader,
    mean,
    optimizer_of,
    state,
    state_change,
    summed,
)
from samestep.experiments.conformance.reader import IGNORED, Bigram
from samestep.experiments.conformance.scenarios import Kind, Scenario

SETTINGS = (
    Setting(
        "accumulate_mean",
        {"zh": "accumulate()，损失取微批均值", "en": "accumulate() with the mean loss"},
        {
            "zh": "循环写在 accumulate() 里，损失是每个微批自己的 token 均值，也就是把 labels 交给模型时它返回的数。",
            "en": "The loop runs inside accumulate(); the loss is the token mean of each micro-batch, which is what a "
            "model returns when it is given labels.",
        },
        {
            **dict.fromkeys("ABCDE", "microbatch_equal"),
            "D": "microbatch_equal*1/K",
            "F": "moved",
            "clip": "true_norm",
        },
    ),
    Setting(
        "recipe",
        {"zh": "配方：和 × K × P / N", "en": "recipe: sum × K × P / N"},
        {
            "zh": "先取齐一个窗口的微批，跨卡汇总有效标签数 N，再以损失之和 × K × P / N 反传；"
            "backward() 会除以 K，DDP 会除以 P。",
            "en": "Fetch the micro-batches of a window first, gather the count N of valid labels, then call backward "
            "on the summed loss × K × P / N: backward() divides by K, DDP by P.",
        },
        {**dict.fromkeys("ABCDE", "global_token_mean"), "clip": "true_norm"},
    ),
    Setting(
        "scheduler",
        {"zh": "调度器，默认设置", "en": "scheduler, defaults"},
        {
            "zh": "prepare() 过的调度器在每次更新时走 P 步：它以为自己的步数是按单卡算的。为 8 次更新写的曲线，4 "
            "次就走完。",
            "en": "A prepared scheduler moves P steps at every update, as if its length had been counted on one "
            "process: a curve written for 8 updates is over after 4.",
        },
        dict.fromkeys(("counters", "counters_accumulated"), "per_update*P"),
    ),
    Setting(
        "scheduler_split_batches",
        {"zh": "调度器，split_batches=True", "en": "scheduler, split_batches=True"},
        {
            "zh": "loader 的批次切给各卡，所以步数本来就是全局的：每次更新走一步。",
            "en": "The loader's batches are split over the ranks, so steps are global already: one a step.",
        },
        dict.fromkeys(("counters", "counters_accumulated"), "per_update"),
    ),
    Setting(
        "scheduler_every_backward",
        {"zh": "调度器，step_scheduler_with_optimizer=False", "en": "scheduler, step_scheduler_with_optimizer=False"},
        {
            "zh": "每次调用都走一步，也包括没有更新的微批：放在 accumulate() 里就是每个微批一步。",
            "en": "Every call is a step, those of micro-batches without an update too: inside accumulate() that is "
            "one a micro-batch.",
        },
        {"counters": "per_update", "counters_accumulated": "per_update*K"},
    ),
    Setting(
        "warmup",
        {"zh": "预热，默认设置", "en": "warm-up, defaults"},
        {
            "zh": "预热也是调度器：写成 4 次更新的预热，P 张卡上 4/P 次就结束。",
            "en": "Warm-up is a scheduler too: written for 4 updates, it is over after 4 ÷ P of them.",
        },
        dict.fromkeys(("counters", "counters_accumulated"), "per_update*P"),
    ),
    Setting(
        "ema",
        {"zh": "EMA，只在 sync_gradients 时更新", "en": "EMA, updated where sync_gradients"},
        {
            "zh": "torch 的 AveragedModel，放在 if accelerator.sync_gradients 里：每次更新平均一次。",
            "en": "torch’s AveragedModel under `if accelerator.sync_gradients`: one average an update.",
        },
        dict.fromkeys(("counters", "counters_accumulated"), "per_update"),
    ),
    Setting(
        "ema_every_backward",
        {"zh": "EMA，每个微批都更新", "en": "EMA, updated at every micro-batch"},
        {
            "zh": "少了这个判断，没有更新的微批也平均一次，一次更新里衰减 K 次。",
            "en": "Without that condition micro-batches without an update are averaged as well: the decay is applied K "
            "times an update.",
        },
        {"counters": "per_update", "counters_accumulated": "per_update*K"},
    ),
)
PLANNED = 8
"""Updates that the learning rate is planned for: from 1 down to 0."""
WARM = 4
"""Updates that the warm-up is planned for."""


def run(setting: str, scenario: Scenario, rank: int, world_size: int) -> Measurement | None:
    """Train the windows of the scenario as one epoch, and read the table."""
    process_group()
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    if scenario.kind is Kind.COUNTERS:
        return counters(setting, scenario)
    accelerator = Accelerator(gradient_accumulation_steps=scenario.accumulation, cpu=True)
    windows = Windows(scenario)
    table = Bigram(windows.ids)
    loop = Loop(accelerator, table, windows, MAX_NORM if scenario.kind is Kind.CLIPPING else None)
    if setting == "recipe":
        loop.recipe()
    else:
        loop.accumulate_mean()
    if scenario.kind is Kind.STATE:
        return state_change(loop.states)
    if scenario.kind is Kind.CLIPPING:
        rule = "global_token_mean" if setting == "recipe" else "microbatch_equal"
        return windows.clipping(rule, -table.weight, loop.norm)
    return windows.coefficients(-table.weight)


def counters(setting: str, scenario: Scenario) -> Counters:
    """A loop with a learning rate and a moving average; what is counted is the object inside accelerate's wrappers."""
    split = setting == "scheduler_split_batches"
    accelerator = Accelerator(
        cpu=True,
        gradient_accumulation_steps=scenario.accumulation,
        step_scheduler_with_optimizer=setting != "scheduler_every_backward",
        dataloader_config=DataLoaderConfiguration(split_batches=split),
    )
    model = torch.nn.Linear(1, 1)
    averaged = AveragedModel(model)
    sgd = torch.optim.SGD(model.parameters(), lr=1.0)
    rates: list[float] = []
    sgd.register_step_pre_hook(lambda optimizer, *_: rates.append(optimizer.param_groups[0]["lr"]))
    samples = cast(Dataset[torch.Tensor], torch.zeros(scenario.total, 1))
    loader = DataLoader(samples, batch_size=accelerator.num_processes if split else 1)
    prepared, optimizer, scheduler, batches = accelerator.prepare(model, sgd, schedule(setting, sgd), loader)
    for batch in batches:
        with accelerator.accumulate(prepared):
            accelerator.backward(prepared(batch).sum())
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        if setting == "ema_every_backward" or accelerator.sync_gradients:
            averaged.update_parameters(model)
    if setting.startswith("ema"):
        return Counters("ema", len(rates), int(averaged.n_averaged))
    return Counters("warmup" if setting == "warmup" else "scheduler", len(rates), scheduler.scheduler.last_epoch, rates)


def schedule(setting: str, optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    """A linear decay, or a linear warm-up."""
    if setting == "warmup":
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / WARM))
    return torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=PLANNED)


class Loop:
    """The loops; `norm`: what the last clipping reported; `states`: at the start and after every micro-batch."""

    def __init__(self, accelerator: Accelerator, table: Bigram, windows: Windows, max_norm: float | None) -> None:
        self.accelerator, self.table, self.windows, self.max_norm = accelerator, table, windows, max_norm
        self.optimizer = optimizer_of(windows.scenario, table.parameters())
        dealt = loader(windows.dealt(accelerator.num_processes))
        self.model, self.wrapped, self.loader = accelerator.prepare(table, self.optimizer, dealt)
        self.norm: float | None = None
        self.states = [state(table.weight, self.optimizer)]

    def accumulate_mean(self) -> None:
        for microbatch in self.loader:
            with self.accelerator.accumulate(self.model):
                self.accelerator.backward(mean(self.model(microbatch.ids), microbatch.labels))
                self.clip()
                self.wrapped.step()
                self.wrapped.zero_grad()
            self.states.append(state(self.table.weight, self.optimizer))

    def recipe(self) -> None:
        microbatches = iter(self.loader)
        for window in self.windows.of_rank(self.accelerator.process_index):
            fetched = list(islice(microbatches, len(window)))
            mine = torch.stack([(microbatch.labels != IGNORED).sum() for microbatch in fetched]).sum()
            valid = int(self.accelerator.gather(mine).sum())
            scale = self.accelerator.gradient_accumulation_steps * self.accelerator.num_processes / valid
            for k, microbatch in enumerate(fetched):
                last = k == len(fetched) - 1
                with nullcontext() if last else self.accelerator.no_sync(self.model):
                    loss = summed(self.model(microbatch.ids), microbatch.labels)
                    self.accelerator.backward(loss * scale)
            self.clip()
            self.wrapped.step()
            self.wrapped.zero_grad()

    def clip(self) -> None:
        if self.max_norm and self.accelerator.sync_gradients:
            self.norm = float(self.accelerator.clip_grad_norm_(self.model.parameters(), self.max_norm))
