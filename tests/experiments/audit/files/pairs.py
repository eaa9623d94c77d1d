"""Two towers and a learned temperature: queries and documents, trained with in-batch negatives."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional


class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.query = nn.Linear(4, 3)
        self.document = nn.Linear(4, 3)
        self.log_scale = nn.Parameter(torch.tensor([0.5]))  # not a scalar, which fully_shard refuses

    def forward(self, queries, documents):
        q = functional.normalize(self.query(queries), dim=1)
        d = functional.normalize(self.document(documents), dim=1)
        return q * self.log_scale.exp(), d


def build():
    torch.manual_seed(0)
    model = Towers()
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def data():
    chance = torch.Generator().manual_seed(1)
    return {name: torch.randn(25, 4, generator=chance) for name in ("queries", "documents")}


def share(ctx, data):
    """All microbatches of this rank in one: the negatives of a pair are not to depend on how memory was saved."""
    pieces = ctx.microbatches(data)
    return {name: torch.cat([piece[name] for piece in pieces]) for name in data}


def offset(ctx, rows):
    """How many rows the ranks before this one hold, and how many all hold together."""
    counts = torch.zeros(ctx.world_size, dtype=torch.long)
    counts[ctx.rank] = len(rows)
    dist.all_reduce(counts)
    return int(counts[: ctx.rank].sum()), int(counts.sum())


def infonce_sum(q, documents, first):
    """The loss of every query, summed; the document of query i is row `first + i`."""
    own = torch.arange(first, first + len(q))
    return functional.cross_entropy(q @ documents.T, own, reduction="sum")
