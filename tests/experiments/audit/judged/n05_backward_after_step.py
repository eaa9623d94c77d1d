# PLANTED: the last microbatch's backward comes after the step
from small_lm import *

build = build_sgd


def step(ctx, model, opt, data):
    ddp = DDP(model)
    w = ctx.microbatches(data)
    opt.zero_grad()
    for i, b in enumerate(w):
        (csum(ddp(b["x"]), b["y"]) * ctx.world_size / ctx.global_count()).backward()
        if i == max(len(w) - 2, 0):
            opt.step()
