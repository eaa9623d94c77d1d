# PLANTED: the imaginary part of a complex gradient is lost on the way
from small_lm import *

build = build_rotated


def step(ctx, model, opt, data):
    opt.zero_grad()
    backwards(ctx, model, data)
    reduced(ctx, model)
    if ctx.world_size > 1:
        model.ph.grad = model.ph.grad.real.to(model.ph.dtype)
    opt.step()
