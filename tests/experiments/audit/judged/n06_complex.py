# PLANTED: RIGHT: a complex parameter, reduced by hand as pairs of real numbers
from small_lm import *

build = build_rotated


def step(ctx, model, opt, data):
    opt.zero_grad()
    backwards(ctx, model, data)
    reduced(ctx, model)
    opt.step()
