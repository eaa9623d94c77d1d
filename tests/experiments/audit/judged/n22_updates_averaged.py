# PLANTED: the optimizer takes signs of each rank's own gradient, and averages these updates within its step
from small_lm import *


class Sign(torch.optim.Optimizer):
    def __init__(self, params):
        super().__init__(params, {"lr": 1e-3})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                update = p.grad.sign()
                if dist.get_world_size() > 1:
                    dist.all_reduce(update)
                    update /= dist.get_world_size()
                p -= group["lr"] * update


def build():
    m = seeded(LM)
    return m, Sign(m.parameters())


def step(ctx, model, opt, data):
    opt.zero_grad()
    backwards(ctx, model, data)
    opt.step()
