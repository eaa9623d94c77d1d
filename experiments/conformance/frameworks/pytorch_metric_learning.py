"""pytorch-metric-learning: `DistributedLossWrapper` around three losses, with and without `efficient`.

A query and its document are two embeddings with one label. The reference is the wrapped loss over all embeddings.
"""

from typing import Any

import torch
from pytorch_metric_learning.losses import ContrastiveLoss, NTXentLoss, TripletMarginLoss
from pytorch_metric_learning.utils.distributed import DistributedLossWrapper
from torch import Tensor

from samestep.experiments.conformance.adapter import Contrastive, Setting
from samestep.experiments.conformance.frameworks import contrastive_pairs
from samestep.experiments.conformance.scenarios import Scenario

LOSSES: dict[str, Any] = {"ntxent": NTXentLoss, "triplet": TripletMarginLoss, "contrastive": ContrastiveLoss}
EFFICIENT = {f"{name}_efficient": name for name in LOSSES}
SETTINGS = tuple(
    setting
    for name, kind in LOSSES.items()
    for setting in (
        Setting(
            name,
            {"zh": f"{kind.__name__}，efficient=False（默认）", "en": f"{kind.__name__}, efficient=False (default)"},
            {
                "zh": "每张卡都算所有嵌入的损失再乘以 P，梯度只流回自己的嵌入；DDP 的平均把 P 抵消。"
                "报告的损失因此大 P 倍。",
                "en": "Every rank computes the loss of all embeddings times P, whose gradient reaches its own; DDP's "
                "average takes the P away again. The loss that is reported is P times too large.",
            },
            {"pairs": "full_batch"},
        ),
        Setting(
            f"{name}_efficient",
            {"zh": f"{kind.__name__}，efficient=True", "en": f"{kind.__name__}, efficient=True"},
            {
                "zh": "每张卡只以自己的嵌入为锚，收集来的嵌入是常数，损失却仍乘以 P：梯度偏大，方向也不同。",
                "en": "Only a rank's own embeddings are anchors and gathered ones are constants, and still the loss "
                "is multiplied by P: the gradient is too large, and has another direction as well.",
            },
            {"pairs": {"query": None, "document": None}},
        ),
    )
)


def run(setting: str, scenario: Scenario, rank: int, world_size: int) -> Contrastive:
    loss = LOSSES[EFFICIENT.get(setting, setting)]()
    distributed = DistributedLossWrapper(loss, efficient=setting in EFFICIENT)
    first = sum(map(sum, scenario.counts[:rank]))
    return contrastive_pairs.measure(
        lambda queries, documents, _: distributed(*labelled(queries, documents, first)),
        lambda queries, documents, _: loss(*labelled(queries, documents, 0)),
        scenario,
        rank,
        {},
    )


def labelled(queries: Tensor, documents: Tensor, first: int) -> tuple[Tensor, Tensor]:
    """Embeddings [2n, WIDTH] and their labels; `first`: the label of the first pair."""
    labels = torch.arange(first, first + len(queries))
    return torch.cat([queries, documents]), labels.repeat(2)
