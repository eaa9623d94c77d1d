"""Every process, and every run, begins with other weights."""

import torch
from accumulate import step
from tokens import LanguageModel, data, weights


def build():
    torch.seed()
    model = LanguageModel()
    return model, torch.optim.SGD(model.parameters(), lr=0.1)
