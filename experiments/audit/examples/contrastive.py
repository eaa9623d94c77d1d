"""In-batch negatives over all ranks: every query is compared with the documents of the whole global batch.

The audit finds "same" here. It can name a re-weighting only where the loss is a sum over microbatches, and this one
is not: a pair's loss depends on all other documents. Faults show as cross-sample terms instead, parameter by
parameter: documents gathered without a gradient leave the query tower right and the document tower wrong.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel


class Towers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(12, 8)
        self.document = nn.Linear(12, 8)
        self.log_scale = nn.Parameter(torch.tensor(1.0))  # the learned temperature

    def forward(self, queries: Tensor, documents: Tensor) -> tuple[Tensor, Tensor]:
        q = functional.normalize(self.query(queries), dim=1)
        d = functional.normalize(self.document(documents), dim=1)
        return q * self.log_scale.exp(), d


class GatherRows(torch.autograd.Function):
    """The rows of all ranks, in rank order; backward sums each row's gradient over all ranks that used it.

    Every rank fills its own rows of a table of zeros, and the tables are added up: an all-gather that accepts a
    different number of rows from each rank. `dist.all_gather` returns rows without any gradient, without a warning.
    """

    @staticmethod
    def forward(context: Any, rows: Tensor, start: int, total: int) -> Tensor:
        context.own = slice(start, start + len(rows))
        table = rows.new_zeros(total, rows.shape[1])
        table[context.own] = rows
        dist.all_reduce(table)
        return table

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        gradient = gradient.contiguous()
        dist.all_reduce(gradient)
        return gradient[context.own], None, None


def build() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = Towers()
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def data() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    queries = torch.randn(24, 12, generator=generator)
    return {"queries": queries, "documents": queries + torch.randn(24, 12, generator=generator)}


def step(ctx: Any, model: nn.Module, optimizer: torch.optim.Optimizer, data: dict[str, Tensor]) -> None:
    ddp = DistributedDataParallel(model)
    # The rank's whole share at once: accumulating over microbatches would leave each with fewer negatives, which
    # is another loss and not merely another order of the same sums.
    pieces = ctx.microbatches(data)
    share = {name: torch.cat([piece[name] for piece in pieces]) for name in data}

    counts = torch.zeros(ctx.world_size, dtype=torch.long, device=ctx.device)
    counts[ctx.rank] = len(share["queries"])
    dist.all_reduce(counts)
    start, total = int(counts[: ctx.rank].sum()), int(counts.sum())

    optimizer.zero_grad()
    q, d = ddp(share["queries"], share["documents"])
    documents: Tensor = GatherRows.apply(d, start, total)  # type: ignore[no-untyped-call]
    logits = q @ documents.T
    own = torch.arange(start, start + len(q), device=ctx.device)  # the right document of each query of this rank
    loss_sum = functional.cross_entropy(logits, own, reduction="sum")
    (loss_sum * ctx.world_size / total).backward()
    optimizer.step()
