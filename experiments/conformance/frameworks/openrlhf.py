"""OpenRLHF: its losses and its count of a window, over a real DeepSpeed engine.

The losses and `iter_grad_accum_global_norm` are loaded by file, because the package imports flash_attn, vllm and ray;
the strategy, which would set up devices, is a stand-in that answers for the data-parallel group. The engine is real
(ZeRO-0). The model is a row of log-probabilities, one for every token, so a token's gradient is its coefficient.
"""

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.metadata import files
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from samestep.experiments.conformance.adapter import Coefficients, Expected, Measurement, Setting, process_group
from samestep.experiments.conformance.frameworks.deepspeed import (
    prepare as prepare,
    started,
    unavailable as unavailable,
)
from samestep.experiments.conformance.scenarios import Scenario

WIDTH = 8
TOLERANCE = 1e-6
"""DeepSpeed computes in float32 here."""
LABELS = ("stubbed",)
_WITHOUT_EMPTY = ((1 / 6, 0.0), (1 / 15, 1 / 3))
"""E by sequences that have labels: 1 ÷ (3 · n); the one that has none leaves the divisor, unlike in `sequence_mean`."""


def _setting(id: str, zh: tuple[str, str], en: tuple[str, str], expected: dict[str, Expected]) -> Setting:
    return Setting(
        id,
        {"zh": zh[0], "en": en[0]},
        {"zh": zh[1], "en": en[1]},
        expected,
        labels=LABELS,
        tolerance=TOLERANCE,
    )


SETTINGS = (
    _setting(
        "sft",
        (
            "SFTLoss，窗口的计数（默认）",
            "先数好整个窗口所有卡的标签，损失乘 K 抵消 DeepSpeed 的 1/K。不满的尾窗不更新。",
        ),
        (
            "SFTLoss with the window's count (default)",
            "The labels of the window are counted over all ranks first, and a factor K undoes DeepSpeed's 1/K. A "
            "partial last window is not stepped.",
        ),
        {**dict.fromkeys("BES", "global_token_mean"), "D": "dropped"},
    ),
    _setting(
        "policy_token_mean",
        ("PolicyLoss，token 平均", "同样的计数。"),
        ("PolicyLoss, token mean", "The same count."),
        dict.fromkeys("ES", "global_token_mean"),
    ),
    _setting(
        "policy_sequence_mean",
        ("PolicyLoss，序列平均", "除以整个窗口里有标签的序列数：没有标签的序列不占位置。"),
        (
            "PolicyLoss, sequence mean",
            "Divided by the sequences of the window that have labels: one without any keeps no place.",
        ),
        {"S": "sequence_mean", "E": _WITHOUT_EMPTY},
    ),
    _setting(
        "sft_without_count",
        ("SFTLoss，没有窗口的计数", "没有总数时退回微批自己的 token 平均。"),
        ("SFTLoss without the window's count", "Without the totals it falls back to the micro-batch's own token mean."),
        dict.fromkeys("BS", "microbatch_equal"),
    ),
)


class LogProbabilities(nn.Module):
    """One parameter a token, and one more for padding."""

    def __init__(self, tokens: int) -> None:
        super().__init__()
        self.values = nn.Parameter(torch.full((tokens + 1,), -1.0))

    def forward(self, ids: Tensor) -> Tensor:
        return self.values[ids]


@dataclass(frozen=True)
class Microbatch:
    """[sequences, width]"""

    ids: Tensor
    mask: Tensor


Loss = Callable[[Tensor, Tensor, Any], Tensor]


def run(setting: str, scenario: Scenario, rank: int, world_size: int) -> Measurement | None:
    """One window by the engine; what is left in the accumulator at the end counts for nothing."""
    process_group()
    library = started()
    model = LogProbabilities(scenario.total)
    window = batches(scenario, rank)
    size = len(scenario.sequences[0][0])
    engine, *_ = library.initialize(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=1.0),
        config={
            "train_micro_batch_size_per_gpu": size,
            "gradient_accumulation_steps": scenario.accumulation,
            "train_batch_size": size * scenario.accumulation * world_size,
            "zero_optimization": {"stage": 0},
            "steps_per_print": 10**9,
        },
    )
    before = model.values.detach().clone()
    loss = losses()[setting]
    for microbatch, totals in counted(setting, scenario, window):
        engine.backward(loss(engine(microbatch.ids), microbatch.mask, totals))
        engine.step()
    change = (model.values.detach() - before)[:-1].double()
    values = iter((change + 0.0).tolist())
    tokens = [[[next(values) for _ in range(n)] for n in counts] for counts in scenario.counts]
    return Coefficients(tokens, float((model.values.detach() - before)[-1].abs()))


def batches(scenario: Scenario, rank: int) -> list[Microbatch]:
    first, made = 0, []
    for r, cells in enumerate(scenario.sequences):
        for lengths in cells:
            ids = torch.full((len(lengths), WIDTH), scenario.total)
            mask = torch.zeros(len(lengths), WIDTH)
            for i, n in enumerate(lengths):
                ids[i, :n], mask[i, :n] = torch.arange(first, first + n), 1
                first += n
            if r == rank:
                made.append(Microbatch(ids, mask))
    return made


def counted(setting: str, scenario: Scenario, window: list[Microbatch]) -> Iterable[tuple[Microbatch, Any]]:
    """Micro-batches, each with the totals of its window as the package hands them to a loss."""
    if setting == "sft_without_count":
        return ((microbatch, {}) for microbatch in window)
    module: Any = loaded("def iter_grad_accum_global_norm")
    module._get_dp_group = lambda strategy: dist.group.WORLD
    strategy = SimpleNamespace(
        ds_device_mesh={"dp": SimpleNamespace(get_group=lambda: dist.group.WORLD)},
        ring_attn_group=None,
        world_size=dist.get_world_size(),
    )
    found: Iterator[tuple[Microbatch, Any]] = module.iter_grad_accum_global_norm(
        window, strategy, scenario.accumulation, lambda microbatch: microbatch.mask
    )
    return found


def losses() -> dict[str, Loss]:
    module = loaded("class SFTLoss")

    def sft(values: Tensor, mask: Tensor, totals: Any) -> Tensor:
        loss: Tensor = module.SFTLoss(token_level_loss=True)(values, mask, **totals)
        return loss

    def policy(by_token: bool) -> Loss:
        def loss(values: Tensor, mask: Tensor, totals: Any) -> Tensor:
            advantages = torch.ones_like(values)
            made = module.PolicyLoss(token_level_loss=by_token)(values, values.detach(), advantages, mask, **totals)
            found: Tensor = made[0]
            return found

        return loss

    return {
        "sft": sft,
        "sft_without_count": sft,
        "policy_token_mean": policy(True),
        "policy_sequence_mean": policy(False),
    }


@cache
def loaded(defining: str) -> ModuleType:
    """The module of the package that defines this, without running the packages that hold it."""
    places = [Path(str(file.locate())) for file in files("openrlhf") or () if file.suffix == ".py"]
    place = next(place for place in places if f"{defining}(" in place.read_text("utf-8"))
    root = next(parent for parent in place.parents if parent.name == "openrlhf")
    name = ".".join(("openrlhf", *place.relative_to(root).with_suffix("").parts))
    above = name.split(".")[:-1]
    for i in range(1, len(above) + 1):
        package = ModuleType(".".join(above[:i]))
        package.__path__ = [str(root.joinpath(*above[1:i]))]
        sys.modules.setdefault(package.__name__, package)
    specification = spec_from_file_location(name, place)
    if specification is None or specification.loader is None:
        raise RuntimeError(f"{place} cannot be loaded")
    module = module_from_spec(specification)
    sys.modules[name] = module
    specification.loader.exec_module(module)
    return module
