"""A model in the middle of its training: AdamW has moments, and they move the weights even without a gradient."""

import tokens
import torch
from tokens import data, loss_sum, weights


def build():
    model, _ = tokens.build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        (loss_sum(model, data()) / weights(data()).sum()).backward()
        optimizer.step()
    optimizer.zero_grad()
    return model, optimizer
