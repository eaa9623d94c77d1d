# PLANTED: parameters are pushed by hand between the backwards of one update
from small_lm import *

build = build_sgd


def step(ctx, model, opt, data):
    ddp = DDP(model)
    opt.zero_grad()
    for b in ctx.microbatches(data):
        (csum(ddp(b["x"]), b["y"]) * ctx.world_size / ctx.global_count()).backward()
        with torch.no_grad():
            for p in model.parameters():
                p.add_(0.01 * torch.sign(p))
    opt.step()
