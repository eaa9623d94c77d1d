# PLANTED: a queue of keys is updated in every microbatch: later ones meet others than on one process
from small_lm import *


class Contrasted(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(V, 8)
        self.register_buffer("queue", F.normalize(torch.randn(16, 8), dim=1))

    def forward(self, t):
        return F.normalize(self.emb(t).mean(1), dim=1)


def build():
    m = seeded(Contrasted)
    return m, torch.optim.SGD(m.parameters(), lr=1e-2)


def data():
    return {"x": torch.randint(V, (24, 4), generator=torch.Generator().manual_seed(1))}


def weights(data):
    return torch.ones(len(data["x"]))


def step(ctx, model, opt, data):
    opt.zero_grad()
    for b in ctx.microbatches(data):
        z, keys = model(b["x"]), F.normalize(torch.sin(b["x"].repeat(1, 2) * torch.arange(1.0, 9.0)), dim=1)
        logits = torch.cat([(z * keys).sum(1, keepdim=True), z @ model.queue.clone().T], 1)
        target = torch.zeros(len(z), dtype=torch.long)
        (F.cross_entropy(logits, target, reduction="sum") * ctx.world_size / ctx.global_count()).backward()
        model.queue.copy_(torch.cat([keys, model.queue])[:16])
    reduced(ctx, model)
    opt.step()
