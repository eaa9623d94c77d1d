"""Wrong: one process that clips after every microbatch."""

from linear import build, clip, data, loss_sum


def step(ctx, model, optimizer, data):
    optimizer.zero_grad()
    for batch in ctx.microbatches(data):
        (loss_sum(model, batch) / ctx.global_count()).backward()
        ctx.note("norm", model.weight.grad.norm())
        clip(model, 0.5)
    optimizer.step()
