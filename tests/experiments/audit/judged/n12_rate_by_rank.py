# PLANTED: each rank steps with a learning rate of its own
from small_lm import *

build = build_sgd


def step(ctx, model, opt, data):
    for g in opt.param_groups:
        g["lr"] = 1e-2 * (1 + ctx.rank)
    opt.zero_grad()
    backwards(ctx, DDP(model), data)
    opt.step()
