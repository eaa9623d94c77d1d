# PLANTED: RIGHT: the optimizer reduces rows of every gradient within its step, steps its rows and gathers them
from small_lm import *


class Rows(torch.optim.Optimizer):
    def __init__(self, params):
        super().__init__(params, {"lr": 1e-2})

    @torch.no_grad()
    def step(self, closure=None):
        size, rank = dist.get_world_size(), dist.get_rank()
        for group in self.param_groups:
            for p in group["params"]:
                n = len(p) // size
                gradient = p.grad
                if size > 1:
                    gradient = torch.empty_like(p.grad[:n])
                    dist.reduce_scatter_tensor(gradient, p.grad)
                    gradient /= size
                memory = self.state[p].setdefault("memory", torch.zeros_like(gradient))
                memory.mul_(0.9).add_(gradient)
                mine = p[rank * n : rank * n + n] - group["lr"] * memory
                if size > 1:
                    dist.all_gather_into_tensor(p, mine)
                else:
                    p.copy_(mine)


def build():
    m = seeded(LM)
    return m, Rows(m.parameters())


def step(ctx, model, opt, data):
    opt.zero_grad()
    backwards(ctx, model, data)
    opt.step()
