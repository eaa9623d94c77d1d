"""A pipeline of two stages with a tied embedding, by torch's own schedule: two data ranks of two stages.

Every call of a step has the same batch, so that the weights of the calls show as one factor.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from samestep.app.calculators.pipeline_schedule import Inputs, compute
from samestep.app.evidence.bags import Text
from samestep.experiments.mesh.measuring import Found, Group, Way, added

DATA_RANKS, STAGES, MICROBATCHES, ROWS, WORDS, WIDTH = 2, 2, 4, 2, 6, 4


class Run(NamedTuple):
    """How often a step calls the schedule, what its loss is multiplied by, and whether the schedule divides."""

    title: Text
    scheme: str
    calls: int
    factor: float
    scale_grads: bool


RUNS: dict[str, Run] = {
    "schedule_divides": Run(
        {"zh": "一次调用，调度来除", "en": "one call, the schedule divides"}, "mean_loss_scaled_once", 1, 1, True
    ),
    "both_divide": Run(
        {"zh": "一次调用，损失与调度都除", "en": "one call, loss and schedule divide"},
        "divided_twice", 1, 1 / MICROBATCHES, True,
    ),
    "nobody_divides": Run({"zh": "一次调用，谁也不除", "en": "one call, nobody divides"}, "not_divided", 1, 1, False),
    "loss_divides": Run(
        {"zh": "三次调用，损失来除", "en": "three calls, the loss divides"},
        "loss_divided_not_scaled", 3, 1 / MICROBATCHES / 3, False,
    ),
    "every_call_divides": Run(
        {"zh": "三次调用，每次都除整个 .grad", "en": "three calls, each dividing all of .grad"},
        "rescaled_after_every_call", 3, 1 / 3, True,
    ),
}  # fmt: skip


def predicted(run: Run) -> float:
    """The sum of the weights that the calculator gives: the factor, as all microbatch gradients add up alike."""
    schemes = compute(Inputs.model_validate({"parts": [[1] * MICROBATCHES] * run.calls})).schemes
    return cast(float, cast(Any, schemes)[run.scheme].total_weight)


WAYS: dict[str, Way] = {
    **{name: Way(run.title, predicted(run)) for name, run in RUNS.items()},
    "tied_summed": Way({"zh": "共享词嵌入：首尾相加", "en": "tied embedding: both ends added"}, 1),
    "tied_averaged": Way({"zh": "共享词嵌入：首尾取平均", "en": "tied embedding: ends averaged"}, 0.5),
    "tied_not_summed": Way({"zh": "共享词嵌入：没有相加", "en": "tied embedding: ends not added"}, None),
}


class First(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(12)
        self.words = nn.Parameter(torch.randn(WORDS, WIDTH))
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, ids: Tensor) -> Tensor:
        return torch.tanh(self.layer(self.words[ids]))


class Last(nn.Module):
    def __init__(self, words: nn.Parameter | None = None) -> None:
        super().__init__()
        self.words = First().words if words is None else words
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.layer(x)) @ self.words.T


def batch() -> tuple[Tensor, Tensor]:
    """Words and the words to predict, (data rank, row)."""
    source = torch.Generator().manual_seed(13)
    size = DATA_RANKS, MICROBATCHES * ROWS
    return torch.randint(WORDS, size, generator=source), torch.randint(WORDS, size, generator=source)


def one_process() -> tuple[Tensor, list[Tensor]]:
    """The gradient of the embedding, used at both ends, and of the layer of each stage."""
    first = First()
    last = Last(first.words)
    ids, targets = (each.flatten() for each in batch())
    torch.autograd.backward(nn.functional.cross_entropy(last(first(ids)), targets))
    gradients = [first.words.grad, first.layer.weight.grad, last.layer.weight.grad]
    words, *layers = map(cast(Callable[[Any], Tensor], torch.clone), gradients)
    return words, layers


def step(run: Run, data: int, stage: int, group: Group) -> First | Last:
    """This stage's module after all calls of one step."""
    module = Last() if stage else First()
    placed = PipelineStage(module, stage, STAGES, torch.device("cpu"), group=group)

    def loss(output: Tensor, target: Tensor) -> Tensor:
        return nn.functional.cross_entropy(output, target) * run.factor

    schedule = Schedule1F1B(placed, MICROBATCHES, loss, scale_grads=run.scale_grads)
    ids, targets = (each[data] for each in batch())
    for _ in range(run.calls):
        if stage:
            schedule.step(target=targets)
        else:
            schedule.step(ids)
    return module


def measure(rank: int) -> dict[str, Found]:
    """Every way on this rank: stage `rank % 2` of data rank `rank // 2`."""
    chains = [dist.new_group([first, first + 1]) for first in range(0, DATA_RANKS * STAGES, STAGES)]
    copies = [dist.new_group(range(stage, DATA_RANKS * STAGES, STAGES)) for stage in range(STAGES)]
    data, stage = divmod(rank, STAGES)
    chain, same = chains[data], copies[stage]
    words, layers = one_process()
    found: dict[str, Found] = {}
    for name, run in RUNS.items():
        module = step(run, data, stage, chain)
        found[name] = Found(added(cast(Tensor, module.layer.weight.grad), same) / DATA_RANKS, layers[stage])
        if name == "schedule_divides":
            end = added(cast(Tensor, module.words.grad), same) / DATA_RANKS
            both = added(end, chain)
            found["tied_summed"] = Found(both, words)
            found["tied_averaged"] = Found(both / STAGES, words)
            found["tied_not_summed"] = Found(end, words)
    return found
