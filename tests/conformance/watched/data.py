"""What the scripts of this folder train on: 28 sequences, each with as many labels as chance gives it."""

import torch
from torch import Tensor, nn
from torch.nn import functional

VOCABULARY, LENGTH, SIZE = 64, 12, 28


def samples() -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(5)
    made = []
    for _ in range(SIZE):
        tokens = torch.randint(3, VOCABULARY, (LENGTH,), generator=generator)
        valid = int(torch.randint(2, LENGTH, (1,), generator=generator))
        made.append((tokens, tokens.masked_fill(torch.arange(LENGTH) >= valid, -100)))
    return made


class Model(nn.Module):
    """Returns its own mean loss over the labels of what it is given."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.head = nn.Embedding(VOCABULARY, 32), nn.Linear(32, VOCABULARY)
        self.block = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, dropout=0.0)

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        logits = self.head(self.block(self.embedding(tokens)))
        return functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
