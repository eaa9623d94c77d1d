"""Right: weights that decay, biases that do not, and an embedding with a learning rate of its own."""

import tokens
import torch
from accumulate import step
from tokens import data, weights


def build():
    model, _ = tokens.build()
    groups = [
        {"params": [model.embedding.weight], "lr": 0.02, "weight_decay": 0.0},
        {"params": [model.layer.weight, model.head.weight]},
        {"params": [model.layer.bias, model.head.bias], "weight_decay": 0.0},
    ]
    return model, torch.optim.AdamW(groups, lr=0.01, weight_decay=0.1)
