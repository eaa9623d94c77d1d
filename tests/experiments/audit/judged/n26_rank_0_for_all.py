# PLANTED: every rank steps with its own gradient, then all take over rank 0's parameters
from small_lm import *


def step(ctx, model, opt, data):
    opt.zero_grad()
    backwards(ctx, model, data)
    opt.step()
    if ctx.world_size > 1:
        for p in model.parameters():
            dist.broadcast(p.data, 0)
