# PLANTED: sums are reduced, and then each rank divides by its own count of tokens
from small_lm import *


def step(ctx, model, opt, data):
    w = ctx.microbatches(data)
    count = sum(int(weights(b).sum()) for b in w)
    opt.zero_grad()
    for b in w:
        csum(model(b["x"]), b["y"]).backward()
    reduced(ctx, model)
    for p in model.parameters():
        p.grad /= count
    opt.step()
