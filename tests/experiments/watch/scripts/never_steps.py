"""Backwards, and no optimizer."""

import torch
from common import loss, model

made = model()
loss(made, torch.Generator()).backward()
print("it ran to its end")
