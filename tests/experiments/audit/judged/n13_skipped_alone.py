# PLANTED: rank 1 alone skips the step
from small_lm import *


def step(ctx, model, opt, data):
    opt.zero_grad()
    backwards(ctx, DDP(model), data)
    if ctx.rank == 0:
        opt.step()
