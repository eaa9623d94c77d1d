# PLANTED: gradients disturbed by 1e-3 after the reduction, where there are several ranks
from small_lm import *

build = build_sgd


def step(ctx, model, opt, data):
    opt.zero_grad()
    backwards(ctx, DDP(model), data)
    if ctx.world_size > 1:
        for p in model.parameters():
            wave = torch.sin(torch.arange(p.numel(), dtype=p.dtype)).view_as(p)
            p.grad += 1e-3 * p.grad.abs().max() * wave
    opt.step()
