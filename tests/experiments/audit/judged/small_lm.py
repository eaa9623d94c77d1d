"""What the files n01 … share: a small language model, its data with ignored labels, and the usual pieces of a step."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

V = 32


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(V, 16)
        self.fc = nn.Linear(16, 16)
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, V)

    def forward(self, t):
        return self.head(self.norm(F.gelu(self.fc(self.emb(t)))))


class Rotated(LM):
    """Embeddings are turned by a complex parameter."""

    def __init__(self):
        super().__init__()
        self.ph = nn.Parameter(torch.exp(torch.linspace(0, 1, 16) * 1j))

    def forward(self, t):
        return self.head((self.emb(t) * self.ph * torch.exp(torch.tensor(1j))).real)


def seeded(model):
    torch.manual_seed(0)
    return model()


def build():
    m = seeded(LM)
    return m, torch.optim.AdamW(m.parameters(), lr=1e-3)


def build_sgd():
    m = seeded(LM)
    return m, torch.optim.SGD(m.parameters(), lr=1e-2, momentum=0.9)


def build_rotated():
    m = seeded(Rotated)
    used = [p for n, p in m.named_parameters() if n.split(".")[0] in ("emb", "head", "ph")]
    return m, torch.optim.SGD(used, lr=1e-2)


def data():
    g = torch.Generator().manual_seed(1)
    t = torch.randint(V, (24, 9), generator=g)
    lengths = torch.randint(1, 9, (24, 1), generator=g)
    return {"x": t[:, :-1], "y": t[:, 1:].masked_fill(torch.arange(8) >= lengths, -100)}


def weights(data):
    return (data["y"] != -100).sum(1)


def csum(logits, y):
    return F.cross_entropy(logits.flatten(0, 1), y.flatten(), ignore_index=-100, reduction="sum")


def backwards(ctx, model, data):
    """Every microbatch's backward, with the right weight for a reduction that averages."""
    for b in ctx.microbatches(data):
        (csum(model(b["x"]), b["y"]) * ctx.world_size / ctx.global_count()).backward()


def reduced(ctx, model):
    """The mean of the ranks' gradients, by hand."""
    if ctx.world_size > 1:
        for p in model.parameters():
            if p.grad is not None:
                dist.all_reduce(torch.view_as_real(p.grad) if p.grad.is_complex() else p.grad)
                p.grad /= ctx.world_size
