# PLANTED: the squared norms of the ranks' own gradients are summed as if they were shards
from small_lm import *

build = build_sgd


def step(ctx, model, opt, data):
    opt.zero_grad()
    for b in ctx.microbatches(data):
        (csum(model(b["x"]), b["y"]) / ctx.global_count()).backward()
    square = sum((p.grad**2).sum() for p in model.parameters())
    if ctx.world_size > 1:
        for p in model.parameters():
            dist.all_reduce(p.grad)
        dist.all_reduce(square)
    norm = square.sqrt()
    ctx.note("norm", norm)
    for p in model.parameters():
        p.grad *= min(1.0, 0.05 / float(norm))
    opt.step()
