# PLANTED: the imaginary part of a complex gradient is divided by P once too often
from small_lm import *

build = build_rotated


def step(ctx, model, opt, data):
    opt.zero_grad()
    backwards(ctx, model, data)
    reduced(ctx, model)
    model.ph.grad = torch.complex(model.ph.grad.real, model.ph.grad.imag / ctx.world_size)
    opt.step()
