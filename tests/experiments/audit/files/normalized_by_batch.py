"""Wrong: BatchNorm takes mean and variance over each microbatch, so every sample's loss depends on its neighbours."""

import normalized
from normalized import step
from regression import data
from torch import nn


def build():
    return normalized.build(nn.BatchNorm1d)
