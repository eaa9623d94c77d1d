# PLANTED: RIGHT: tensor parallel by hand, with parameters that are slices of those that build() makes
from small_lm import *


class Sum(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(context, gradient):
        return gradient


def build():
    torch.manual_seed(0)
    m = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
    return m, torch.optim.SGD(m.parameters(), lr=1e-2, momentum=0.9)


def data():
    g = torch.Generator().manual_seed(1)
    return {"x": torch.randn(24, 6, generator=g), "y": torch.randn(24, 3, generator=g)}


def weights(data):
    return torch.ones(24)


def step(ctx, model, opt, data):
    first, _, second = model
    rows = slice(ctx.rank * 16 // ctx.world_size, (ctx.rank + 1) * 16 // ctx.world_size)
    first.weight, first.bias = (nn.Parameter(t.detach()[rows].clone()) for t in (first.weight, first.bias))
    second.weight = nn.Parameter(second.weight.detach()[:, rows].clone())
    opt = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    part = F.linear(torch.tanh(first(data["x"])), second.weight)
    out = (Sum.apply(part) if ctx.world_size > 1 else part) + second.bias
    (F.mse_loss(out, data["y"], reduction="sum") / ctx.global_count()).backward()
    opt.step()
