"""sentence-transformers' MegaBatchMarginLoss in its mini-batched version, which is the default.

The loss embeds a large batch piece by piece to save memory, and should give the gradient of the whole batch. It is run
on one encoder in each process by itself, with all pairs of the scenario, and compared with its definition.
"""

from collections.abc import Mapping

import torch
from sentence_transformers import losses
from torch import Tensor, nn
from torch.nn import functional

from samestep.experiments.conformance.adapter import Contrastive, Measurement, Proportion, Setting
from samestep.experiments.conformance.frameworks.contrastive_pairs import WIDTH, Pairs
from samestep.experiments.conformance.reader import proportion
from samestep.experiments.conformance.scenarios import Scenario

POSITIVE, NEGATIVE = 0.8, 0.3
"""Margins, as the library has them."""
PIECE = 2
SETTINGS = (
    Setting(
        "mini_batched",
        {"zh": "小批版本（默认），每次 2 对", "en": "mini-batched version (default), 2 pairs at a time"},
        {
            "zh": "分小批前向再反向，应当得到整批的梯度。5.3.0 里只有最后一个小批进入反向，前面的都被丢掉。",
            "en": "Forward and backward piece by piece should give the whole batch's gradient. In 5.3.0 only the last "
            "mini-batch goes backward, and those before it are dropped.",
        },
        {"pairs": "full_batch"},
        releases={"5.3.0": {"pairs": {"encoder": None}}},
    ),
    Setting(
        "whole",
        {"zh": "不分小批", "en": "not mini-batched"},
        {"zh": "整批一次算完。", "en": "The whole batch at once."},
        {"pairs": "full_batch"},
        releases={"5.3.0": {"pairs": "full_batch"}},
    ),
)


class Encoder(nn.Module):
    """Features → features with an embedding, as the library's models do it."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH, generator=generator, dtype=torch.float64))

    def forward(self, features: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {**features, "sentence_embedding": features["inputs"] @ self.weight}


def run(setting: str, scenario: Scenario, rank: int, world_size: int) -> Measurement:
    """The gradient of the loss for all pairs."""
    pairs, model = Pairs(scenario), nn.Sequential(Encoder())
    loss = losses.MegaBatchMarginLoss(
        model, POSITIVE, NEGATIVE, use_mini_batched_version=setting == "mini_batched", mini_batch_size=PIECE
    )
    loss([{"inputs": pairs.queries}, {"inputs": pairs.documents}], None).backward()
    (parameter,) = model.parameters()
    if parameter.grad is None:
        raise RuntimeError("the loss left no gradient")
    return Contrastive({"encoder": Proportion(*proportion(parameter.grad, whole(pairs)))})


def whole(pairs: Pairs) -> Tensor:
    """From the definition: every query's own document, and the nearest of the others'."""
    encoder = Encoder()
    queries, documents = (
        functional.normalize(encoder({"inputs": part})["sentence_embedding"], dim=1)
        for part in (pairs.queries, pairs.documents)
    )
    cosines = queries @ documents.T
    own = cosines.diagonal()
    nearest = (cosines - 4 * torch.eye(len(cosines))).max(dim=1).values
    margin = functional.relu(POSITIVE - own) + functional.relu(nearest - NEGATIVE)
    (gradient,) = torch.autograd.grad(margin.mean(), [encoder.weight])
    return gradient
