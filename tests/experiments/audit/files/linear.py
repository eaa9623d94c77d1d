"""The worked case: four samples, two weights, half the squared error."""

import json
from pathlib import Path

import torch
from torch import nn

CASES = json.loads((Path(__file__).parents[3] / "cases.json").read_text("utf-8"))["cases"]
INPUTS = next(case["inputs"] for case in CASES if case["id"] == "A-01")


def build():
    model = nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        model.weight[0] = torch.tensor([float(weight) for weight in INPUTS["w0"]])
    return model, torch.optim.SGD(model.parameters(), lr=float(INPUTS["optimizer"]["lr"]))


def data():
    x = [[float(number) for number in features] for features, _ in INPUTS["samples"]]
    y = [[float(target)] for _, target in INPUTS["samples"]]
    return {"x": torch.tensor(x), "y": torch.tensor(y)}


def loss_sum(model, batch):
    return ((model(batch["x"]) - batch["y"]) ** 2).sum() / 2


def clip(model, max_norm):
    """By the formula, without the 1e-6 of clip_grad_norm_."""
    norm = model.weight.grad.norm()
    model.weight.grad *= torch.clamp(max_norm / norm, max=1.0)
