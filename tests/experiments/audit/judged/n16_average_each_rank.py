# PLANTED: a moving average of the weights is updated once per process, not once an update
from small_lm import *


class Average:
    def __init__(self, model):
        self.shadow = {n: torch.zeros_like(p) for n, p in model.named_parameters()}

    @torch.no_grad()
    def update(self, model):
        for n, p in model.named_parameters():
            self.shadow[n].lerp_(p, 0.01)


def build():
    m = seeded(LM)
    return m, torch.optim.AdamW(m.parameters(), lr=1e-3), Average(m)


def step(ctx, model, opt, data, average):
    opt.zero_grad()
    backwards(ctx, DDP(model), data)
    opt.step()
    for _ in range(ctx.world_size):
        average.update(model)
