"""Where every path starts: weights, optimizers and windows."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray
from torch import Tensor

from samestep.app.evidence.bags import Json
from samestep.experiments import corpus
from samestep.experiments.tiny import tokenizer
from samestep.experiments.tiny.tiny_transformer import WINDOW, TinyTransformer
from samestep.experiments.train_tiny import FLOOR, LEARNING_RATE, adamw, restore, restore_optimizer

OPTIMIZERS = ("sgd", "adamw")
SGD_RATE = 0.1
ADAMW_RATE = LEARNING_RATE * FLOOR
"""The rate at which the training ended."""
WINDOWS = 4


class Start(NamedTuple):
    """Weights, AdamW's state after the last training step, and the windows [4, 97]."""

    weights: Mapping[str, NDArray[Any]]
    moments: Mapping[str, NDArray[Any]]
    windows: Tensor

    def model(self) -> TinyTransformer:
        model = TinyTransformer()
        restore(model, self.weights)
        return model

    def ready(self, optimizer: str) -> tuple[TinyTransformer, torch.optim.Optimizer]:
        """A model and its optimizer, as they are before the update."""
        model = self.model()
        if optimizer == "sgd":
            return model, torch.optim.SGD(model.parameters(), SGD_RATE)
        stepper = adamw(model, ADAMW_RATE)
        restore_optimizer(model, stepper, self.moments)
        return model, stepper


def draw(documents: list[corpus.Document], learnt: tokenizer.Tokenizer) -> tuple[Tensor, list[Json]]:
    """Four windows, a fifth to four fifths into four documents, each beginning with a whole character."""
    windows: list[list[int]] = []
    origins: list[Json] = []
    for k in range(WINDOWS):
        document = documents[k * (len(documents) - 1) // (WINDOWS - 1)]
        stream = [tokenizer.BOS, *learnt.encode(document.text), tokenizer.EOS]
        start = len(stream) * (k + 1) // (WINDOWS + 1)
        while learnt.bytes_of[stream[start]][0] & 0xC0 == 0x80:  # in the middle of a character
            start += 1
        windows.append(stream[start : start + WINDOW + 1])
        origins.append({"document": document.name, "token": start, "text": learnt.decode(windows[-1])})
    return torch.tensor(windows), origins
