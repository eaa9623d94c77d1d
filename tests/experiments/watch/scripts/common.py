"""What these scripts share: a small model, and data of a rank."""

import torch
from torch import Tensor, nn
from torch.nn import functional

VOCABULARY = 30


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(VOCABULARY, 16), nn.Linear(16, VOCABULARY))


def loss(made: nn.Module, generator: torch.Generator, size: int = 8) -> Tensor:
    tokens = torch.randint(VOCABULARY, (size,), generator=generator)
    return functional.cross_entropy(made(tokens), tokens.roll(-1))
