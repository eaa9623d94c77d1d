"""One DDP update over sequences that have different numbers of valid tokens.

    samestep-lab audit my_step.py

runs `step` once on one process and once on several, and compares everything down to the optimizer's state.
Put your own model, data and step in place of these. `ctx` offers

    ctx.rank, ctx.world_size, ctx.device
    ctx.microbatches(data)   this rank's share of the global batch, in pieces of unequal size
    ctx.global_count()       the sum of weights(data) over the global batch, here its valid tokens
    ctx.note(name, value)    anything to be compared besides, e.g. a gradient norm that you compute by hand
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

IGNORED = -100
VOCABULARY = 32


def build() -> tuple[nn.Module, torch.optim.Optimizer]:
    """The model and its optimizer, the same on every process: so seed it."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(VOCABULARY, 16), nn.Linear(16, 16), nn.GELU(), nn.Linear(16, VOCABULARY))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def data() -> dict[str, Tensor]:
    """The whole global batch; the first axis counts samples. 24 sequences, 1 to 8 of their tokens are valid."""
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(VOCABULARY, (24, 9), generator=generator)
    lengths = torch.randint(1, 9, (24, 1), generator=generator)
    labels = tokens[:, 1:].masked_fill(torch.arange(8) >= lengths, IGNORED)
    return {"tokens": tokens[:, :-1], "labels": labels}


def weights(data: dict[str, Tensor]) -> Tensor:
    """How much each sample counts: its valid tokens. Without this function every sample counts 1."""
    return (data["labels"] != IGNORED).sum(1)


def step(ctx: Any, model: nn.Module, optimizer: torch.optim.Optimizer, data: dict[str, Tensor]) -> None:
    """One update as in the training loop; with one process and one microbatch it is the plain update."""
    ddp = DistributedDataParallel(model)
    optimizer.zero_grad()
    for batch in ctx.microbatches(data):
        logits = ddp(batch["tokens"]).flatten(0, 1)
        labels = batch["labels"].flatten()
        loss_sum = functional.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum")
        # DDP takes the mean over P ranks: P·S/N becomes the sum of all S over the N tokens of the global batch.
        # cross_entropy's own mean would divide by the valid tokens of this microbatch, which are not N.
        (loss_sum * ctx.world_size / ctx.global_count()).backward()
    optimizer.step()
