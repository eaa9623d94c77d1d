# PLANTED: weights decayed before every microbatch's backward: later ones see smaller parameters
from small_lm import *


def step(ctx, model, opt, data):
    ddp = DDP(model)
    opt.zero_grad()
    for b in ctx.microbatches(data):
        with torch.no_grad():
            for p in model.parameters():
                p.mul_(1 - 0.01)
        (csum(ddp(b["x"]), b["y"]) * ctx.world_size / ctx.global_count()).backward()
    opt.step()
