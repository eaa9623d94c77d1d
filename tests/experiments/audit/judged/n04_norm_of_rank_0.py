# PLANTED: gradients of the norm are rank 0's alone, all others are summed by hand
from small_lm import *

build = build_sgd


def step(ctx, model, opt, data):
    opt.zero_grad()
    for b in ctx.microbatches(data):
        (csum(model(b["x"]), b["y"]) / ctx.global_count()).backward()
    if ctx.world_size > 1:
        for n, p in model.named_parameters():
            if "norm" not in n:
                dist.all_reduce(p.grad)
            else:
                dist.broadcast(p.grad, 0)
    opt.step()
