"""What the files of this folder share: a small network, its batch, and the plain sum of squares."""

import torch
from torch import nn

SAMPLES = 24


def build_with(optimizer: type[torch.optim.Optimizer], **options: float) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(11)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))
    return model, optimizer(model.parameters(), **options)


def data() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(12)
    return {
        "x": torch.randn(SAMPLES, 4, generator=generator),
        "y": torch.randn(SAMPLES, 1, generator=generator),
    }


def squares(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return (model(batch["x"]) - batch["y"]).square().sum()
