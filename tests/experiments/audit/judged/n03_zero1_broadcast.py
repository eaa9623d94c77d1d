# PLANTED: RIGHT: ZeRO-1 by hand, every part broadcast by the rank that steps it
from small_lm import *


def step(ctx, model, opt, data):
    params = list(model.parameters())
    opt = torch.optim.AdamW(params[ctx.rank :: ctx.world_size], lr=1e-2)
    model.zero_grad()
    backwards(ctx, DDP(model), data)
    opt.step()
    if ctx.world_size > 1:
        for i, p in enumerate(params):
            dist.broadcast(p.data, i % ctx.world_size)
