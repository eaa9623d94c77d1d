"""The fixed model of the experiments: a causal Transformer of 298,176 parameters. It knows nothing of parallelism.

Tokens [B, T] → embedding + sinusoidal positions → 2 pre-norm blocks (4 heads, explicit softmax attention; feed-forward
384 with GELU) → LayerNorm → logits [B, T, 387]. Width 96; all linear maps but the head have biases; the head is not
tied to the embedding; nothing is dropped at random. Counted by hand:

    embedding and head   2 · 387·96                                              74,304
    a block              (96·288 + 288) + (96·96 + 96) + (96·384 + 384)
                         + (384·96 + 96) + 2·(96 + 96)                2 · 111,840 = 223,680
    last LayerNorm       96 + 96                                                    192
"""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu

VOCABULARY = 387
WINDOW = 96
WIDTH = 96
HEADS = 4
LAYERS = 2
FEED_FORWARD = 384
PARAMETERS = 298_176
IGNORED = -100
"""A label that gives no loss."""


class Block(nn.Module):
    """x + attention(norm(x)), then x + feed-forward(norm(x))."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(WIDTH)
        self.query_key_value = nn.Linear(WIDTH, 3 * WIDTH)
        self.attention_out = nn.Linear(WIDTH, WIDTH)
        self.feed_forward_norm = nn.LayerNorm(WIDTH)
        self.feed_forward_in = nn.Linear(WIDTH, FEED_FORWARD)
        self.feed_forward_out = nn.Linear(FEED_FORWARD, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        hidden = gelu(self.feed_forward_in(self.feed_forward_norm(x)))
        return x + torch.as_tensor(self.feed_forward_out(hidden))

    def attention(self, x: Tensor) -> Tensor:
        """Every position looks at itself and what came before. Written out: a fused kernel may sum in another order."""
        batch, length, _ = x.shape
        shape = (batch, length, 3, HEADS, WIDTH // HEADS)
        query, key, value = self.query_key_value(x).view(shape).permute(2, 0, 3, 1, 4)
        scores = query @ key.transpose(-2, -1) / math.sqrt(WIDTH // HEADS)
        later = torch.ones(length, length, dtype=torch.bool).triu(1)
        weights = scores.masked_fill(later, -math.inf).softmax(-1)
        mixed = (weights @ value).transpose(1, 2).reshape(batch, length, WIDTH)
        return torch.as_tensor(self.attention_out(mixed))


class TinyTransformer(nn.Module):
    """Tokens [B, T ≤ 96] to logits [B, T, 387]."""

    positions: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.register_buffer("positions", sinusoids(WINDOW, WIDTH), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens) + self.positions[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return torch.as_tensor(self.head(self.norm(x)))


def sinusoids(length: int, width: int) -> Tensor:
    """Positions [length, width]: sin and cos side by side, wavelengths from 2π to 20000π (Vaswani et al. 2017)."""
    rates = torch.exp(-math.log(10000.0) * torch.arange(0, width, 2) / width)
    angles = torch.arange(length)[:, None] * rates
    return torch.stack([angles.sin(), angles.cos()], -1).reshape(length, width)


def initialise(model: TinyTransformer) -> None:
    """Matrices from N(0, 0.02), biases 0, LayerNorms 1 and 0, drawn from torch's global generator."""
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)


def loss_sum(logits: Tensor, labels: Tensor) -> Tensor:
    """Sum of −log p over the labels [B, T] that are not IGNORED; 0 when there are none."""
    return cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="sum")


def loss_mean(logits: Tensor, labels: Tensor) -> Tensor:
    """The framework's mean over the labels that are not IGNORED; NaN when there are none."""
    return cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="mean")


def parameter_count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
