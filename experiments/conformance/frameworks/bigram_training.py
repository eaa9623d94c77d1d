"""What the adapters that train the bigram table share: a scenario's data, its losses, and what is read afterwards."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from samestep.experiments.conformance.adapter import Clipping, Coefficients, StateChange
from samestep.experiments.conformance.classifier import coefficients
from samestep.experiments.conformance.reader import Bigram, Tokens, proportion
from samestep.experiments.conformance.scenarios import Kind, Scenario

MAX_NORM = 0.05
"""Of scenario `clip`: well below the norm that every objective's gradient has there."""


class Microbatch(NamedTuple):
    """One sample, [positions]. `valid`: N, the number of labels of its whole window on all ranks, as a tensor [1]."""

    ids: Tensor
    labels: Tensor
    valid: Tensor


class Windows:
    """The windows of a scenario in the order in which they are trained; the last one is measured.

    `ids`: rows that the table must have.
    """

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.before = Tokens(scenario.before)
        self.measured = Tokens(scenario.counts, first=self.before.end)
        self.ids = self.measured.end

    def of_rank(self, rank: int) -> list[list[Microbatch]]:
        """[window][k]"""
        return [microbatches(window, rank) for window in (self.before, self.measured) if window.counts]

    def dealt(self, ranks: int) -> list[Microbatch]:
        """Round robin, as a loader deals one data set to its ranks."""
        windows = [self.of_rank(rank) for rank in range(ranks)]
        return [
            microbatch
            for window in zip(*windows, strict=True)
            for turn in zip(*window, strict=True)
            for microbatch in turn
        ]

    def coefficients(self, update: Tensor) -> Coefficients:
        """`update`: what training took off the table in all, learning rate 1."""
        return Coefficients(*self.measured.read(update, others=[self.before]))

    def clipping(self, rule: str, update: Tensor, reported: float | None) -> Clipping:
        """`rule`: the objective that is clipped; its gradient is computed here, in one process."""
        table = Bigram(len(update))
        weights = coefficients(rule, self.scenario)
        objective = torch.zeros((), dtype=torch.float64)
        for rank, cells in enumerate(self.measured.counts):
            for k in range(len(cells)):
                ids, labels = self.measured.ids(rank, k), self.measured.labels(rank, k)
                objective = objective + weights[rank][k][0] * summed(table(ids), labels)
        (gradient,) = torch.autograd.grad(objective, [table.weight])
        return clipping(gradient, update, MAX_NORM, reported)


def microbatches(window: Tokens, rank: int) -> list[Microbatch]:
    valid = torch.tensor([sum(map(sum, window.counts))])
    return [Microbatch(window.ids(rank, k), window.labels(rank, k), valid) for k in range(len(window.counts[rank]))]


def loader(microbatches: Sequence[Microbatch]) -> DataLoader[Microbatch]:
    """One sample a batch, in this order; a list is as good as a `Dataset`."""
    return DataLoader(cast(Dataset[Microbatch], microbatches), batch_size=1)


def mean(logits: Tensor, labels: Tensor) -> Tensor:
    """What a model returns that is given labels: the mean over the valid labels of this micro-batch."""
    return functional.cross_entropy(logits.flatten(0, -2), labels.flatten())


def summed(logits: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(logits.flatten(0, -2), labels.flatten(), reduction="sum")


def optimizer_of(scenario: Scenario, parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """SGD with learning rate 1, so that the update is the gradient; AdamW where its moments are the question."""
    if scenario.kind is Kind.STATE:
        return torch.optim.AdamW(parameters, lr=0.1, weight_decay=0.0)
    return torch.optim.SGD(parameters, lr=1.0)


def clipping(gradient: Tensor, update: Tensor, max_norm: float, reported: float | None) -> Clipping:
    """`gradient`: unclipped, from one process. `reported`: to this rank; everybody's is gathered."""
    heard: list[float | None] = [None] * dist.get_world_size()
    dist.all_gather_object(heard, reported)
    update = update.detach().cpu().double()
    _, residual = proportion(update, gradient)
    return Clipping(heard, float(gradient.norm()), max_norm, float(update.norm()), residual)


@dataclass(frozen=True)
class State:
    """Parameters, whole; this rank's part of AdamW's moments, empty before the first step; and its step counter."""

    parameters: Tensor
    moments: Tensor
    steps: int


def state(parameters: Tensor, optimizer: torch.optim.Optimizer) -> State:
    """A copy of what the next step may change. `optimizer`: torch's own, inside whatever wraps it."""
    kept = list(optimizer.state.values())
    moments = [_local(each[name]).flatten() for each in kept for name in ("exp_avg", "exp_avg_sq") if name in each]
    steps = [int(each["step"]) for each in kept if "step" in each]
    return State(
        parameters.detach().clone(), torch.cat(moments).clone() if moments else torch.zeros(0), max(steps, default=0)
    )


def _local(value: Tensor) -> Tensor:
    """This rank's part of a DTensor; any other tensor as it is."""
    return value.to_local() if hasattr(value, "to_local") else value


def state_change(states: Sequence[State], loss: float | None = None) -> StateChange:
    """`states`: at the start, after the window before, after the window without labels."""
    start, before, after = states
    moments = (after.moments - before.moments).abs().max().double()
    dist.all_reduce(moments, op=dist.ReduceOp.MAX)
    return StateChange(
        parameters=float((after.parameters - before.parameters).abs().max()),
        moments=float(moments),
        steps=after.steps - before.steps,
        parameters_before=float((before.parameters - start.parameters).abs().max()),
        loss=loss,
    )
