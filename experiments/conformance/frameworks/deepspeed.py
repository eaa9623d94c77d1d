"""DeepSpeed: the engine's own backward() and step() under ZeRO 0 to 3, and a recipe for the global token mean."""

import fcntl
import hashlib
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from samestep.experiments.conformance.adapter import Measurement, Setting, process_group
from samestep.experiments.conformance.frameworks.bigram_training import (
    MAX_NORM,
    Microbatch,
    Windows,
    mean,
    microbatches,
    optimizer_of,
    state,
    state_change,
    summed,
)
from samestep.experiments.conformance.reader import Bigram, Tokens
from samestep.experiments.conformance.scenarios import Kind, Scenario

MEAN = {**dict.fromkeys("ABCDE", "microbatch_equal"), "D": "leaking", "F": "moved"}
ZERO = {"zero0": 0, "zero1": 1, "zero2": 2, "zero3": 3}
"""ZeRO's stage in the settings that are about it; all others have stage 1."""
NEXT = ((1, 1), (1, 1))
"""The window of the next epoch, after a tail."""


def _zero(name: str, stage: int) -> Setting:
    return Setting(
        name,
        {"zh": f"ZeRO-{stage}，损失取微批均值", "en": f"ZeRO-{stage} with the mean loss"},
        {
            "zh": "engine.backward(均值)、engine.step()；engine 把损失除以累积步数，梯度在卡间取平均。"
            "数据取完时，剩下的微批留在累积器里，混进下一轮的第一个窗口。",
            "en": "engine.backward(mean), engine.step(): the engine divides the loss by the accumulation steps and "
            "averages gradients over the ranks. Micro-batches left over when the data end stay in the accumulator "
            "and join the first window of the next epoch.",
        },
        {**MEAN, "clip": "true_norm" if stage else "not_reported"},
        tolerance=1e-6,
        releases={"0.18.9": {}},  # its fp32 ZeRO modifies a view in place, which this torch refuses
    )


SETTINGS = (
    *(_zero(name, stage) for name, stage in ZERO.items()),
    Setting(
        "recipe",
        {
            "zh": "ZeRO-1，配方：和 × K × P / N，并标明窗口边界",
            "en": "ZeRO-1, recipe: sum × K × P / N, boundary marked",
        },
        {
            "zh": "损失之和 × K × P / N 抵消 engine 除以的累积步数和卡数；窗口的最后一个微批前调用 "
            "set_gradient_accumulation_boundary(True)，尾窗才会更新。",
            "en": "The summed loss × K × P / N undoes the engine's divisions by accumulation steps and ranks; "
            "set_gradient_accumulation_boundary(True) before the last micro-batch of a window makes a tail step.",
        },
        dict.fromkeys("ABCDE", "global_token_mean"),
        tolerance=1e-6,
        releases={"0.18.9": {}},
    ),
    Setting(
        "zero1_bf16",
        {"zh": "ZeRO-1，bf16，梯度以 fp32 累积", "en": "ZeRO-1, bf16, gradients accumulated in fp32"},
        {
            "zh": "bf16 参数，grad_accum_dtype 为 fp32，损失取微批均值。0.18.9 里最后一个微批没有参加归约："
            "每张卡的 token 都落在自己管的分片里，于是最后一个微批的系数是应有的 P 倍。",
            "en": "Parameters in bf16, grad_accum_dtype fp32, the mean loss. In 0.18.9 the last micro-batch misses the "
            "reduction: here every rank's tokens lie in the shard that it owns, so they get P times their coefficient.",
        },
        {"B": "microbatch_equal"},
        tolerance=1e-3,
        releases={"0.18.9": {"B": ((0.125, 0.0625), (0.05, 0.5))}},
    ),
)


def unavailable(setting: str) -> str | None:
    """DeepSpeed builds a C++ operator when it starts on CPUs."""
    return None if shutil.which(os.environ.get("CXX", "c++")) else "no C++ compiler, which DeepSpeed needs on CPUs"


def prepare() -> None:
    """Build the operator, once per release; it takes minutes.

    torch guards a build by a file, which stays behind if the build is killed, and would then be waited for: under our
    own lock, which ends with its process, such a file can only be a left-over.
    """
    if unavailable("") is not None:
        return
    operators().mkdir(parents=True, exist_ok=True)
    with (operators() / "building").open("w") as ours:
        fcntl.flock(ours, fcntl.LOCK_EX)
        for left_over in operators().glob("*/lock"):
            left_over.unlink()
        imported().accelerator.get_accelerator().create_op_builder("ShareMemCommBuilder").load()


def run(setting: str, scenario: Scenario, rank: int, world_size: int) -> Measurement | None:
    """Train the windows of the scenario, and after a tail the beginning of another epoch; read the table."""
    process_group()
    library = started()
    windows = Windows(scenario)
    following = Tokens(NEXT, first=windows.ids)
    table = Bigram(rows(windows, following), torch.float32)
    optimizer = optimizer_of(scenario, table.parameters())
    engine, *_ = library.initialize(model=table, optimizer=optimizer, config=config(setting, scenario))

    def whole() -> Tensor:
        with library.zero.GatheredParameters([table.weight]):
            return table.weight.detach().double()

    train = recipe if setting == "recipe" else train_mean
    states = [state(whole(), optimizer)]
    for window in windows.of_rank(rank):
        train(engine, window)
        states.append(state(whole(), optimizer))
    trained = states[-1].parameters
    if scenario.kind is Kind.STATE:
        return state_change(states)
    if scenario.kind is Kind.CLIPPING:
        norm = engine.get_global_grad_norm()
        return windows.clipping("microbatch_equal", -trained, None if norm is None else float(norm))
    measured = windows.coefficients(-trained)
    if not scenario.tail:
        return measured
    train(engine, microbatches(following, rank))
    later, _ = windows.measured.read(trained - whole(), others=[following])
    return replace(measured, later=later)


def started() -> Any:
    """The library, with its communication over the process group that is there."""
    library = imported()
    library.init_distributed(dist_backend="gloo", auto_mpi_discovery=False)
    return library


@cache
def imported() -> Any:
    """The library; it reads these variables when it is imported.

    Ninja, which builds its operator, may be installed beside this interpreter only. Every release in every environment
    has a folder of its own for the operator: two would build it again and again, each over the other's.
    """
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    os.environ |= {"DS_ACCELERATOR": "cpu", "DS_BUILD_OPS": "0", "PATH": path}
    os.environ["TORCH_EXTENSIONS_DIR"] = str(operators())
    import deepspeed

    return deepspeed


def operators() -> Path:
    """Where this release's operators are built, for this environment: its own headers go into them."""
    place = hashlib.sha256(sys.prefix.encode()).hexdigest()[:8]
    return Path.home() / ".cache" / "torch_extensions" / f"deepspeed-{version('deepspeed')}-{place}"


def built() -> bool:
    """Whether `prepare` has been here."""
    return any(operators().glob("*/*.so"))


def rows(windows: Windows, following: Tokens) -> int:
    """Of the table: twice what rank 0 uses, if that is enough; then each rank's tokens lie in the shard it owns."""
    return max(following.end, 2 * windows.measured.rows[1][0][0] if windows.measured.rows[1][0] else 0)


def config(setting: str, scenario: Scenario) -> dict[str, Any]:
    """Of the engine. Optimizers that DeepSpeed does not know have to be allowed."""
    bf16 = {"bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32"}} if setting == "zero1_bf16" else {}
    return {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": scenario.accumulation,
        "gradient_clipping": MAX_NORM if scenario.kind is Kind.CLIPPING else 0.0,
        "zero_optimization": {"stage": ZERO.get(setting, 1)},
        "zero_allow_untested_optimizer": True,
        **bf16,
    }


def train_mean(engine: Any, window: Sequence[Microbatch]) -> None:
    for microbatch in window:
        engine.backward(mean(engine(microbatch.ids), microbatch.labels))
        engine.step()


def recipe(engine: Any, window: Sequence[Microbatch]) -> None:
    factor = engine.gradient_accumulation_steps() * engine.dp_world_size
    for k, microbatch in enumerate(window):
        engine.set_gradient_accumulation_boundary(k == len(window) - 1)
        loss = summed(engine(microbatch.ids), microbatch.labels)
        engine.backward(loss * factor / int(microbatch.valid))
        engine.step()
