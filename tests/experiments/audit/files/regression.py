"""Least squares with a small net: samples that all count the same."""

import torch
from torch import nn
from torch.nn import functional

SAMPLES = 31  # enough for two in the smallest of six microbatches that all differ, as BatchNorm demands


def build():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def data():
    chance = torch.Generator().manual_seed(1)
    return {"x": torch.randn(SAMPLES, 4, generator=chance), "y": torch.randn(SAMPLES, 2, generator=chance)}


def loss_sum(model, batch):
    return functional.mse_loss(model(batch["x"]), batch["y"], reduction="sum")
