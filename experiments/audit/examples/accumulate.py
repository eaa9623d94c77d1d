"""Gradient accumulation: ranks meet only once in a window, and every token of the window counts the same."""

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

IGNORED = -100
VOCABULARY = 32


def build() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(VOCABULARY, 16), nn.Linear(16, 16), nn.GELU(), nn.Linear(16, VOCABULARY))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def data() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(VOCABULARY, (24, 9), generator=generator)
    lengths = torch.randint(1, 9, (24, 1), generator=generator)
    labels = tokens[:, 1:].masked_fill(torch.arange(8) >= lengths, IGNORED)
    return {"tokens": tokens[:, :-1], "labels": labels}


def weights(data: dict[str, Tensor]) -> Tensor:
    return (data["labels"] != IGNORED).sum(1)


def step(ctx: Any, model: nn.Module, optimizer: torch.optim.Optimizer, data: dict[str, Tensor]) -> None:
    ddp = DistributedDataParallel(model)
    window = ctx.microbatches(data)
    # Known before the first backward: the valid tokens of the whole window on all ranks. In a training loop, sum
    # the labels of the window's microbatches and all-reduce that one number.
    valid_tokens = ctx.global_count()

    optimizer.zero_grad()
    for batch in window:
        # The forward pass decides whether DDP reduces, so it belongs inside no_sync as much as the backward pass.
        with nullcontext() if batch is window[-1] else ddp.no_sync():
            logits = ddp(batch["tokens"]).flatten(0, 1)
            labels = batch["labels"].flatten()
            loss_sum = functional.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum")
            (loss_sum * ctx.world_size / valid_tokens).backward()  # and not once more by the number of microbatches
    optimizer.step()
