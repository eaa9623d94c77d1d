# PLANTED: zero_grad between the last backward and the step
from small_lm import *


def step(ctx, model, opt, data):
    backwards(ctx, DDP(model), data)
    opt.zero_grad()
    opt.step()
