# PLANTED: unscaled before the reduction, so that the scaler of rank 1 alone sees an overflow and skips
from small_lm import *


def build():
    m = seeded(LM)
    return m, torch.optim.AdamW(m.parameters(), lr=1e-3), torch.amp.GradScaler("cpu", init_scale=1024.0)


def step(ctx, model, opt, data, scaler):
    opt.zero_grad()
    for b in ctx.microbatches(data):
        scaler.scale(csum(model(b["x"]), b["y"]) * ctx.world_size / ctx.global_count()).backward()
    if ctx.rank == 1:
        model.head.bias.grad[0] = float("inf")
    scaler.unscale_(opt)
    reduced(ctx, model)
    scaler.step(opt)
    scaler.update()
