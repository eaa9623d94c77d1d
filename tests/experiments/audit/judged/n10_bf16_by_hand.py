# PLANTED: gradients rounded to bfloat16 by hand, where there are several ranks
from small_lm import *

build = build_sgd


def step(ctx, model, opt, data):
    opt.zero_grad()
    backwards(ctx, DDP(model), data)
    if ctx.world_size > 1:
        for p in model.parameters():
            p.grad = p.grad.bfloat16().to(p.dtype)
    opt.step()
