"""What the six scripts share: the data of a rank, and a small language model that returns its logits."""

import torch
from torch import Tensor, nn

VOCABULARY, LENGTH = 48, 12
LABELS = [[[14, 2, 10], [4, 6, 22]], [[16, 4, 14], [10, 16, 4]]]
"""[update][rank][microstep]: how many labels there are."""


class Model(nn.Module):
    """Logits [batch, time, vocabulary]."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.head = nn.Embedding(VOCABULARY, 32), nn.Linear(32, VOCABULARY)
        self.block = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.head(self.block(self.embedding(tokens)))
        return logits


def batch(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Two sequences of twelve tokens that have so many labels together, a longer one's and a shorter one's."""
    tokens = torch.randint(3, VOCABULARY, (2, LENGTH), generator=generator)
    longer = min(LENGTH, 2 * count // 3)
    lengths = torch.tensor([[longer], [count - longer]])
    return tokens, tokens.roll(-1, 1).masked_fill(torch.arange(LENGTH) >= lengths, -100)


def windows(rank: int) -> list[list[tuple[Tensor, Tensor]]]:
    """This rank's microbatches, update by update."""
    generator = torch.Generator().manual_seed(100 + rank)
    return [[batch(count, generator) for count in update[rank]] for update in LABELS]
