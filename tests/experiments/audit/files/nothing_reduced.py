"""Vacuous: every rank computes the whole update by itself. They agree because they never met."""

from tokens import build, data, loss_sum, weights


def step(ctx, model, optimizer, data):
    optimizer.zero_grad()
    (loss_sum(model, data) / ctx.global_count()).backward()
    optimizer.step()
