# PLANTED: slow weights are interpolated once per process, not once an update
from small_lm import *


def step(ctx, model, opt, data):
    slow = [p.detach().clone() for p in model.parameters()]
    opt.zero_grad()
    backwards(ctx, DDP(model), data)
    opt.step()
    with torch.no_grad():
        for s, p in zip(slow, model.parameters()):
            for _ in range(ctx.world_size):
                s.lerp_(p, 0.4)
            p.copy_(s)
