"""What most of these files train: a few next-token predictions, a different number of valid ones in each sequence."""

import torch
from torch import nn
from torch.nn import functional

IGNORED = -100
VOCABULARY, WIDTH, LENGTH, SEQUENCES = 7, 5, 4, 25  # 25 is divisible neither by 2 ranks nor by 3


class LanguageModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens):
        """Logits of every token, one row each."""
        hidden = self.embedding(tokens.flatten())
        return self.head(hidden + torch.tanh(self.layer(hidden)))


def build():
    torch.manual_seed(0)
    model = LanguageModel()
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def data():
    chance = torch.Generator().manual_seed(6)
    tokens = torch.randint(VOCABULARY, (SEQUENCES, LENGTH + 1), generator=chance)
    lengths = torch.randint(1, LENGTH + 1, (SEQUENCES, 1), generator=chance)
    labels = tokens[:, 1:].masked_fill(torch.arange(LENGTH) >= lengths, IGNORED)
    return {"tokens": tokens[:, :-1], "labels": labels}


def weights(data):
    return (data["labels"] != IGNORED).sum(1)


def loss_sum(model, batch):
    """S: the losses of the valid tokens of a microbatch, added up."""
    return functional.cross_entropy(model(batch["tokens"]), batch["labels"].flatten(), reduction="sum")


def loss_mean(model, batch):
    """S/n: cross_entropy's own mean, over the valid tokens of this microbatch alone."""
    return functional.cross_entropy(model(batch["tokens"]), batch["labels"].flatten())
