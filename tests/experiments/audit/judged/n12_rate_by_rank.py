# PLANTED: each rank steps with a learning rate of its own
# ARGS: 
import contextlib, copy, math
from typing import Any
import torch, torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
V = 32
class LM(nn.Module):
    def __init__(self):
        super().__init__(); self.emb = nn.Embedding(V, 16); self.fc = nn.Linear(16, 16); self.norm = nn.LayerNorm(16); self.head = nn.Linear(16, V)
    def forward(self, t): return self.head(self.norm(F.gelu(self.fc(self.emb(t)))))
def build():
    torch.manual_seed(0); m = LM(); return m, torch.optim.AdamW(m.parameters(), lr=1e-3)
def data():
    g = torch.Generator().manual_seed(1); t = torch.randint(V, (24, 9), generator=g); L = torch.randint(1, 9, (24, 1), generator=g)
    return {"x": t[:, :-1], "y": t[:, 1:].masked_fill(torch.arange(8) >= L, -100)}
def weights(data): return (data["y"] != -100).sum(1)
def ce(logits, y, **k): return F.cross_entropy(logits.flatten(0, 1), y.flatten(), ignore_index=-100, **k)
def csum(logits, y): return ce(logits, y, reduction="sum")

def build():
    torch.manual_seed(0); m = LM(); return m, torch.optim.SGD(m.parameters(), lr=1e-2, momentum=0.9)
def step(ctx, model, opt, data):
    for g in opt.param_groups: g["lr"] = 1e-2 * (1 + ctx.rank)
    ddp = DDP(model); P = ctx.world_size; N = ctx.global_count(); opt.zero_grad()
    for b in ctx.microbatches(data): (csum(ddp(b["x"]), b["y"]) * P / N).backward()
    opt.step()
