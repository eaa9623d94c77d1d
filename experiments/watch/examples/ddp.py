"""A training loop over DDP as people write it: accumulation, labels that are ignored, a mean loss, clipping, AdamW.

    samestep-lab watch -- torchrun --nproc-per-node 2 train.py
    samestep-lab watch --processes 2 train.py                      # the same, without torchrun

says what every token of its updates weighs. It imports nothing of ours: put your own script in its place.
"""

from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

VOCABULARY, ACCUMULATION = 50, 3


class Model(nn.Module):
    """A tiny language model that returns its own loss."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 32)
        self.block = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.head = nn.Linear(32, VOCABULARY)

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        logits = self.head(self.block(self.embedding(tokens)))
        return functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)


def batches(rank: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """12 batches of two sequences each, with as many labels as chance gives them."""
    generator = torch.Generator().manual_seed(100 + rank)
    made = []
    for _ in range(12):
        tokens = torch.randint(VOCABULARY, (2, 13), generator=generator)
        valid = int(torch.randint(1, 12, (1,), generator=generator))
        made.append((tokens[:, :-1], tokens[:, 1:].masked_fill(torch.arange(12) >= valid, -100)))
    return made


def main() -> None:
    """Four updates of three microbatches a rank."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(Model())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for i, (tokens, labels) in enumerate(batches(dist.get_rank())):
        last = (i + 1) % ACCUMULATION == 0
        with nullcontext() if last else model.no_sync():
            # The mean over this microbatch's own labels: what every token then weighs is what watch tells.
            loss = model(tokens, labels) / ACCUMULATION
            loss.backward()
        if last:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
