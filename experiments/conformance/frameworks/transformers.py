"""transformers: the Trainer as it comes, and with what quietly changes its objective."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

from accelerate.state import DistributedType, PartialState
from torch import Tensor
from transformers import LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

from samestep.experiments.conformance.adapter import Counters, Expected, Measurement, Setting, process_group
from samestep.experiments.conformance.frameworks import deepspeed, tiny_llama
from samestep.experiments.conformance.frameworks.bigram_training import mean, summed
from samestep.experiments.conformance.scenarios import Kind, Scenario

DEEPSPEED_TOLERANCE = 1e-5
"""Its master weights are float32, and so is the update."""
GLOBAL = dict.fromkeys("ABCDE", "global_token_mean")
LATEST_ONLY: dict[str, dict[str, Expected]] = {"4.57.1": {}, "4.53.3": {}, "4.50.3": {}}
"""For settings that older releases are not asked about."""
LOCAL = dict.fromkeys("ABCDE", "replica_equal")
NO_TAIL = {**LOCAL, "D": "dropped"}
COUNTED = ("counters", "counters_accumulated")
WARM = 4
"""Updates that the warm-up is planned for."""
ZERO = {"zero1": 1, "zero2": 2}
"""Settings over DeepSpeed, and ZeRO's stage."""
GIVEN: dict[str, dict[str, Any]] = {
    "average_off": {"average_tokens_across_devices": False},
    "average_on": {"average_tokens_across_devices": True},
    "fsdp2": {"fsdp": True, "fsdp_config": {"fsdp_version": 2}},
}
"""What a setting gives the `TrainingArguments`."""

SETTINGS = (
    Setting(
        "default",
        {"zh": "Trainer 默认（DDP）", "en": "Trainer, defaults (DDP)"},
        {
            "zh": "Trainer 先取齐一个窗口的微批，跨卡汇总标签数，把它作为 num_items_in_batch 交给模型。",
            "en": "The Trainer fetches the micro-batches of a window, sums the labels over all ranks, and hands the "
            "count to the model as num_items_in_batch.",
        },
        {**GLOBAL, "F": "moved", "clip": "true_norm"},
        tolerance=tiny_llama.TOLERANCE,
        releases={"4.57.1": GLOBAL, "4.53.3": LOCAL, "4.50.3": NO_TAIL},
    ),
    replace(tiny_llama.AVERAGE_OFF, releases={**LATEST_ONLY, "4.50.3": NO_TAIL}),
    Setting(
        "average_on",
        {"zh": "average_tokens_across_devices=True", "en": "average_tokens_across_devices=True"},
        {
            "zh": "写明默认值；旧版本里默认是 False。",
            "en": "The default spelt out; in older releases the default is False.",
        },
        {"B": "global_token_mean", "D": "global_token_mean"},
        tolerance=tiny_llama.TOLERANCE,
        releases={**LATEST_ONLY, "4.50.3": {"B": "global_token_mean", "D": "dropped"}},
    ),
    Setting(
        "first_label",
        {"zh": "位置 0 也有标签", "en": "position 0 has a label too"},
        {
            "zh": "没有 token 预测位置 0，损失里没有它；把它数进分母，全部系数都会变小。",
            "en": "No token predicts position 0 and no loss has it; a count that includes it makes every coefficient "
            "smaller.",
        },
        {"B": "global_token_mean"},
        tolerance=tiny_llama.TOLERANCE,
        releases={
            "4.57.1": {"B": ((1 / 20, 1 / 20), (1 / 20, 1 / 20))},
            "4.53.3": {},
            "4.50.3": {"B": ((1 / 24, 1 / 24), (1 / 16, 1 / 16))},
        },
    ),
    Setting(
        "no_kwargs",
        {"zh": "forward 没有 **kwargs 的模型", "en": "a model whose forward has no **kwargs"},
        {
            "zh": "Trainer 看 forward 的签名：没有 **kwargs，就不传 num_items_in_batch，也不提示，退回各微批的均值。",
            "en": "The Trainer looks at the signature of forward: without **kwargs it hands over no count, says "
            "nothing, and falls back to the means of the micro-batches.",
        },
        {**dict.fromkeys("ABCDE", "microbatch_equal"), "F": "moved"},
        tolerance=tiny_llama.TOLERANCE,
        releases={**LATEST_ONLY, "4.53.3": {"B": "microbatch_equal", "D": "microbatch_equal*1/K"}},
    ),
    Setting(
        "mean_loss_func",
        {"zh": "compute_loss_func 返回均值", "en": "compute_loss_func that returns a mean"},
        {
            "zh": "有 compute_loss_func 时，Trainer 以为得到的是和 ÷ N，于是不除以 K，还乘以 P：均值因此放大 P×K 倍。",
            "en": "With a compute_loss_func the Trainer does not divide by K and multiplies by P, because it expects "
            "sum ÷ N: a mean comes out P × K times too large.",
        },
        {
            "A": "microbatch_equal*P",
            "B": "microbatch_equal*P*K",
            "C": "microbatch_equal*P",
            "D": "microbatch_equal*P",
            "E": "microbatch_equal*P*K",
        },
        tolerance=tiny_llama.TOLERANCE,
        releases=LATEST_ONLY,
    ),
    Setting(
        "sum_loss_func",
        {"zh": "compute_loss_func 返回和 ÷ num_items_in_batch", "en": "compute_loss_func that returns sum ÷ count"},
        {
            "zh": "compute_loss_func 该返回的东西：损失之和除以传入的 num_items_in_batch。",
            "en": "What a compute_loss_func has to return: the summed loss divided by num_items_in_batch.",
        },
        GLOBAL,
        tolerance=tiny_llama.TOLERANCE,
        releases=LATEST_ONLY,
    ),
    Setting(
        "fsdp2",
        {"zh": "Trainer 默认（FSDP2）", "en": "Trainer, defaults (FSDP2)"},
        {
            "zh": "默认设置，参数用 fully_shard 分片。accelerate 在 CPU 上会把 fsdp=True 悄悄当成 DDP，"
            "所以先把它的进程类型改成多 GPU；设备仍是 CPU，分片是否发生另有检查。",
            "en": "The defaults, with parameters sharded by fully_shard. On CPUs accelerate silently takes fsdp=True "
            "for DDP, so it is told that its processes are of a GPU kind; the device stays the CPU, and that the "
            "parameters are sharded is checked.",
        },
        {**GLOBAL, "F": "moved", "clip": "true_norm"},
        labels=("patched device",),
        tolerance=tiny_llama.TOLERANCE,
        releases=LATEST_ONLY,
    ),
    *(
        Setting(
            name,
            {"zh": f"Trainer 默认（DeepSpeed ZeRO-{stage}）", "en": f"Trainer, defaults (DeepSpeed ZeRO-{stage})"},
            {
                "zh": "默认设置，交给 DeepSpeed 训练。Trainer 知道窗口在哪里结束，所以尾窗也会更新。",
                "en": "The defaults, over DeepSpeed. The Trainer knows where a window ends: a tail is stepped too.",
            },
            {**GLOBAL, "F": "moved"},
            tolerance=DEEPSPEED_TOLERANCE,
            releases=LATEST_ONLY,
        )
        for name, stage in ZERO.items()
    ),
    Setting(
        "warmup",
        {"zh": "预热，warmup_steps=4", "en": "warm-up, warmup_steps=4"},
        {
            "zh": "Trainer 的调度器不经过 prepare()，在每次更新之后走一步，与 P、K 无关；第一次更新的学习率因此是 0。",
            "en": "The Trainer does not prepare() its scheduler and moves it one step after every update, whatever P "
            "and K are; so the first update has the learning rate 0.",
        },
        dict.fromkeys(COUNTED, "per_update"),
        releases=LATEST_ONLY,
    ),
    Setting(
        "warmup_alone",
        {"zh": "预热，warmup_steps=4，P = 1", "en": "warm-up, warmup_steps=4, P = 1"},
        {
            "zh": "同样的训练，只有一个进程：每个 rank 各训练自己的样本，不知道另一个。",
            "en": "The same with one process: each rank trains on its own samples and does not know of the other.",
        },
        dict.fromkeys(COUNTED, "per_update"),
        labels=("one process",),
        releases=LATEST_ONLY,
    ),
)


class InOrderTrainer(tiny_llama.InOrder, Trainer):
    pass


class NoKwargs(LlamaForCausalLM):
    """The same model behind a signature that takes no further arguments."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, labels: Tensor | None = None) -> Any:
        return super().forward(input_ids=input_ids, attention_mask=attention_mask, labels=labels)


def unavailable(setting: str) -> str | None:
    """Only the settings over DeepSpeed need more than this framework."""
    if setting not in ZERO:
        return None
    if find_spec("deepspeed") is None:
        return "deepspeed is not installed"
    if reason := deepspeed.unavailable(setting):
        return reason
    return None if deepspeed.built() else "DeepSpeed's operator is not built yet: measure deepspeed first"


def run(setting: str, scenario: Scenario, rank: int, world_size: int) -> Measurement | None:
    """Train the windows of the scenario as one epoch, and read the last update."""
    process_group()
    tiny_llama.forget()
    if scenario.kind is Kind.COUNTERS:
        with alone() if setting == "warmup_alone" else nullcontext():
            return counters(setting, scenario, rank)
    model = tiny_llama.model(NoKwargs if setting == "no_kwargs" else LlamaForCausalLM)
    record = tiny_llama.Record(model)
    samples = tiny_llama.Samples(scenario, first=setting == "first_label")
    given = dict(GIVEN.get(setting, {}))
    if setting in ZERO:
        deepspeed.started()
        given["deepspeed"] = zero(ZERO[setting])
    arguments = TrainingArguments(**tiny_llama.arguments(scenario), **given)
    if setting == "fsdp2":
        enter_fsdp()
    trainer = InOrderTrainer(
        model=model,
        args=arguments,
        train_dataset=samples.dealt(),
        callbacks=[record],
        compute_loss_func={"mean_loss_func": mean_loss, "sum_loss_func": sum_loss}.get(setting),
    )
    trainer.train()
    if setting == "fsdp2" and not all(hasattr(parameter, "full_tensor") for parameter in model.parameters()):
        raise RuntimeError("the parameters were not sharded")
    return tiny_llama.read(record, samples, rank)


def counters(setting: str, scenario: Scenario, rank: int) -> Counters:
    """An epoch with a warm-up: how often the Trainer moves its scheduler, and the learning rate of every update."""
    samples = tiny_llama.Samples(scenario)
    given = {"learning_rate": 1.0, "lr_scheduler_type": "linear", "warmup_steps": WARM}
    dealt, processes = samples.dealt(), len(scenario.counts)
    if setting == "warmup_alone":
        given["ddp_backend"] = None
        dealt, processes = samples.of_rank(rank), 1
    rates = Rates()
    trainer = InOrderTrainer(
        model=tiny_llama.model(),
        args=TrainingArguments(**{**tiny_llama.arguments(scenario), **given}),
        train_dataset=dealt,
        callbacks=[rates],
    )
    if trainer.args.world_size != processes:
        raise RuntimeError(f"the Trainer takes itself for one of {trainer.args.world_size} processes")
    trainer.train()
    return Counters("warmup", len(rates.seen), trainer.lr_scheduler.last_epoch, rates.seen)


class Rates(TrainerCallback):
    """The learning rate of every step that torch's optimizer takes, inside accelerate's wrapper."""

    def __init__(self) -> None:
        self.seen: list[float] = []

    def on_train_begin(self, *_: object, optimizer: Any, **__: object) -> None:
        optimizer.optimizer.register_step_pre_hook(lambda sgd, *_: self.seen.append(sgd.param_groups[0]["lr"]))


@contextmanager
def alone() -> Iterator[None]:
    """Without the variables that a launcher sets, so that nobody knows of another process."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    kept = {name: os.environ.pop(name) for name in names if name in os.environ}
    try:
        yield
    finally:
        os.environ |= kept


def zero(stage: int) -> dict[str, Any]:
    """DeepSpeed's configuration: "auto" is what the Trainer fills in."""
    return {
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
    }


def enter_fsdp() -> None:
    """Without this, accelerate takes `fsdp=True` for DDP on CPUs, silently; the device stays what it is."""
    PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU


def mean_loss(outputs: Any, labels: Tensor, num_items_in_batch: Tensor) -> Tensor:
    return mean(outputs.logits[:, :-1], labels[:, 1:])


def sum_loss(outputs: Any, labels: Tensor, num_items_in_batch: Tensor) -> Tensor:
    return summed(outputs.logits[:, :-1], labels[:, 1:]) / num_items_in_batch
