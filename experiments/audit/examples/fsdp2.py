"""FSDP2: every layer sharded by `fully_shard`, gradients reduced once in a window and clipped by their global norm."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional

IGNORED = -100
VOCABULARY = 32


class LanguageModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 16)
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(2))
        self.head = nn.Linear(16, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of every token, one row each."""
        hidden = self.embedding(tokens.flatten())
        for layer in self.layers:
            hidden = hidden + functional.gelu(layer(hidden))
        logits: Tensor = self.head(hidden)
        return logits


def build() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = LanguageModel()
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def data() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(VOCABULARY, (24, 9), generator=generator)
    lengths = torch.randint(1, 9, (24, 1), generator=generator)
    labels = tokens[:, 1:].masked_fill(torch.arange(8) >= lengths, IGNORED)
    return {"tokens": tokens[:, :-1], "labels": labels}


def weights(data: dict[str, Tensor]) -> Tensor:
    return (data["labels"] != IGNORED).sum(1)


def step(ctx: Any, model: LanguageModel, optimizer: torch.optim.Optimizer, data: dict[str, Tensor]) -> None:
    mesh = init_device_mesh(ctx.device.type, (ctx.world_size,))
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    root = fully_shard(model, mesh=mesh)
    # fully_shard has put sharded parameters in place of the old ones, which the optimizer would go on updating in
    # vain. In a training script: build the optimizer after sharding.
    optimizer.param_groups[0]["params"] = list(model.parameters())

    window = ctx.microbatches(data)
    optimizer.zero_grad()
    for batch in window:
        root.set_requires_gradient_sync(batch is window[-1])
        logits = model(batch["tokens"])
        labels = batch["labels"].flatten()
        loss_sum = functional.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum")
        (loss_sum * ctx.world_size / ctx.global_count()).backward()  # reduce-scatter takes the mean over P ranks

    nn.utils.clip_grad_norm_(model.parameters(), 0.1)  # the norm of the whole gradient, not of this rank's shards
    optimizer.step()
