# PLANTED: RIGHT: ZeRO-2 by hand: flat gradients reduced and scattered, Adam on a padded flat shard, parameters gathered
from small_lm import *


def step(ctx, model, opt, data):
    size, params = ctx.world_size, list(model.parameters())
    model.zero_grad()
    backwards(ctx, model, data)
    length = sum(p.numel() for p in params)
    each = -(-length // size) + size - 1
    gradient, values = (
        F.pad(torch.cat([t.flatten() for t in found]), (0, each * size - length))
        for found in ([p.grad for p in params], [p.detach() for p in params])
    )
    mine = nn.Parameter(values[ctx.rank * each : (ctx.rank + 1) * each].clone())
    mine.grad = torch.empty_like(mine)
    if size > 1:
        dist.reduce_scatter_tensor(mine.grad, gradient)
        mine.grad /= size
    else:
        mine.grad.copy_(gradient)
    torch.optim.Adam([mine], lr=1e-2).step()
    if size > 1:
        dist.all_gather_into_tensor(values, mine.detach())
    else:
        values = mine.detach()
    with torch.no_grad():
        for p, new in zip(params, values[:length].split([p.numel() for p in params])):
            p.copy_(new.view_as(p))
