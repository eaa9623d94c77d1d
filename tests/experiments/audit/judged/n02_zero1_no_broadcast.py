# PLANTED: ZeRO-1 by hand: each rank steps its part and broadcasts nothing
from small_lm import *


def step(ctx, model, opt, data):
    mine = list(model.parameters())[ctx.rank :: ctx.world_size]
    opt = torch.optim.SGD(mine, lr=1e-2, momentum=0.9)
    model.zero_grad()
    backwards(ctx, DDP(model), data)
    opt.step()
