"""The training loop that a user of DDP or FSDP2 writes: micro-batches, a loss, one optimizer step; and its reading.

A `Wrapped` model is what the two adapters differ in: how micro-batches before the last keep their gradients to
themselves, and how a whole tensor is had from what a rank holds.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from samestep.experiments.conformance.adapter import Clipping, Coefficients, Measurement, StateChange
from samestep.experiments.conformance.frameworks.bigram_training import MAX_NORM
from samestep.experiments.conformance.reader import IGNORED, Bigram, Tokens, relative
from samestep.experiments.conformance.scenarios import Kind, Scenario

Loss = Literal["local_mean", "scaled_sum", "sum_over_total"]
Clip = Callable[[nn.Module, float], float]
"""Clips the model's gradients to a norm in place, and gives the norm that it found."""


@dataclass(frozen=True)
class Wrapped:
    """`alone(last)`: a context in which gradients are kept to the rank, unless it is the last micro-batch."""

    module: nn.Module
    alone: Callable[[bool], AbstractContextManager[object]]
    whole: Callable[[Tensor], Tensor]

    @property
    def weight(self) -> Tensor:
        """The table, all of it, as it is now."""
        (parameter,) = self.module.parameters()
        return self.whole(parameter.detach()).clone()


Wrap = Callable[[Bigram], Wrapped]


def measure(wrap: Wrap, loss: Loss, scenario: Scenario, rank: int, clip: Clip) -> Measurement:
    if scenario.kind is Kind.STATE:
        return empty_window(wrap, loss, scenario, rank)
    if scenario.kind is Kind.CLIPPING:
        return clipping(wrap, loss, scenario, rank, clip)
    before = Tokens(scenario.before)
    window = Tokens(scenario.counts, first=before.end)
    wrapped = wrap(Bigram(window.end))
    start = wrapped.weight
    optimizer = torch.optim.SGD(wrapped.module.parameters(), lr=1.0)
    for tokens in (before, window) if scenario.before else (window,):
        step(wrapped, optimizer, tokens, loss, scenario.accumulation, rank)
    return Coefficients(*window.read(start - wrapped.weight, others=[before]))


def step(
    wrapped: Wrapped, optimizer: torch.optim.Optimizer, tokens: Tokens, loss: Loss, accumulation: int, rank: int
) -> float:
    """One window; the loss of the last micro-batch."""
    value = gradients(wrapped, tokens, loss, accumulation, rank)
    optimizer.step()
    optimizer.zero_grad()
    return value


def gradients(wrapped: Wrapped, tokens: Tokens, loss: Loss, accumulation: int, rank: int) -> float:
    microbatches = tokens.counts[rank]
    total = torch.tensor(float(sum(microbatches)))
    dist.all_reduce(total)
    value = torch.zeros(())
    for k in range(len(microbatches)):
        with wrapped.alone(k == len(microbatches) - 1):
            value = loss_of(wrapped.module(tokens.ids(rank, k)), tokens.labels(rank, k), loss, accumulation, total)
            value.backward()  # type: ignore[no-untyped-call]
    return float(value)


def loss_of(logits: Tensor, labels: Tensor, loss: Loss, accumulation: int, total: Tensor) -> Tensor:
    """What the user returns for a micro-batch. The mean of no label at all is NaN, and its gradient 0."""
    if loss == "local_mean":
        return functional.cross_entropy(logits, labels, ignore_index=IGNORED) / accumulation
    losses = functional.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum")
    scale = dist.get_world_size() if loss == "scaled_sum" else 1
    return losses * scale / total.clamp(min=1)


def empty_window(wrap: Wrap, loss: Loss, scenario: Scenario, rank: int) -> StateChange:
    """A window with labels, then one without, by AdamW."""
    before, window = Tokens(scenario.before), Tokens(scenario.counts)
    wrapped = wrap(Bigram(before.end))
    optimizer = torch.optim.AdamW(wrapped.module.parameters(), lr=0.1)
    start = wrapped.weight
    step(wrapped, optimizer, before, loss, scenario.accumulation, rank)
    (state,) = optimizer.state.values()
    middle, moments = wrapped.weight, [wrapped.whole(state[name]).clone() for name in ("exp_avg", "exp_avg_sq")]
    steps = int(state["step"])
    value = step(wrapped, optimizer, window, loss, scenario.accumulation, rank)
    changes = [
        float((wrapped.whole(state[name]) - old).abs().max())
        for name, old in zip(("exp_avg", "exp_avg_sq"), moments, strict=True)
    ]
    return StateChange(
        parameters=float((wrapped.weight - middle).abs().max()),
        moments=max(changes),
        steps=int(state["step"]) - steps,
        parameters_before=float((middle - start).abs().max()),
        loss=value,
    )


def clipping(wrap: Wrap, loss: Loss, scenario: Scenario, rank: int, clip: Clip) -> Clipping:
    """Clip before the step, and compare with the gradient of the same window that was not clipped."""
    window = Tokens(scenario.counts)
    wrapped = wrap(Bigram(window.end))
    (parameter,) = wrapped.module.parameters()
    gradients(wrapped, window, loss, scenario.accumulation, rank)
    if parameter.grad is None:
        raise RuntimeError("the window left no gradient")
    unclipped = wrapped.whole(parameter.grad).clone()
    found = clip(wrapped.module, MAX_NORM)
    reported: list[float | None] = [None] * dist.get_world_size()
    dist.all_gather_object(reported, found)
    start = wrapped.weight
    torch.optim.SGD([parameter], lr=1.0).step()
    applied = start - wrapped.weight
    along = applied.flatten() @ unclipped.flatten() / unclipped.square().sum()
    return Clipping(
        reported=reported,
        true=true_norm(window, loss, scenario),
        max_norm=MAX_NORM,
        updated=float(applied.norm()),
        residual=relative(applied - along * unclipped, applied),
    )


def true_norm(window: Tokens, loss: Loss, scenario: Scenario) -> float:
    """The norm of the gradient of the whole window's loss, from one process that holds all of it."""
    model = Bigram(window.end)
    total, processes = torch.tensor(float(scenario.total)), len(scenario.counts)
    for rank, microbatches in enumerate(scenario.counts):
        for k in range(len(microbatches)):
            value = loss_of(model(window.ids(rank, k)), window.labels(rank, k), loss, scenario.accumulation, total)
            (value if loss == "sum_over_total" else value / processes).backward()  # type: ignore[no-untyped-call]
    if model.weight.grad is None:
        raise RuntimeError("the window left no gradient")
    return float(model.weight.grad.norm())
