# PLANTED: of a complex gradient only the real part is reduced
from small_lm import *

build = build_rotated


def step(ctx, model, opt, data):
    opt.zero_grad()
    backwards(ctx, model, data)
    mine = model.ph.grad.imag.clone()
    reduced(ctx, model)
    model.ph.grad = torch.complex(model.ph.grad.real, mine)
    opt.step()
