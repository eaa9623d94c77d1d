"""sentence-transformers: ranking losses with and without gathering, by themselves and in its Trainer."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from sentence_transformers.sentence_transformer.losses import (
    MultipleNegativesRankingLoss,
    MultipleNegativesSymmetricRankingLoss,
)
from torch import Tensor, nn

from samestep.app.evidence.bags import Text
from samestep.experiments.conformance.adapter import Contrastive, Setting
from samestep.experiments.conformance.frameworks import contrastive_pairs, tiny_bert
from samestep.experiments.conformance.frameworks.tiny_bert import SCALE
from samestep.experiments.conformance.scenarios import Scenario

DIRECTIONS = ("query_to_doc", "query_to_query", "doc_to_query", "doc_to_doc")
LOSSES: dict[str, tuple[Callable[..., Any], Callable[[Tensor, Tensor, float], Tensor]]] = {
    "mnrl": (MultipleNegativesRankingLoss, contrastive_pairs.info_nce),
    "symmetric": (MultipleNegativesSymmetricRankingLoss, contrastive_pairs.symmetric),
    "all": (partial(MultipleNegativesRankingLoss, directions=DIRECTIONS), contrastive_pairs.all_directions),
}
"""The library's loss, and the same from its definition."""


class Way(NamedTuple):
    """How a setting is run. `apart`: the reference is the mean of what ranks, or micro-batches, compute alone."""

    loss: str = "mnrl"
    trainer: bool = False
    gather: bool = False
    cached: bool = False
    apart: bool = False


WAYS = {
    "mnrl_default": Way(),
    "mnrl_default_by_rank": Way(apart=True),
    "mnrl_gather": Way(gather=True),
    "symmetric_default": Way("symmetric"),
    "symmetric_gather": Way("symmetric", gather=True),
    "all_directions_gather": Way("all", gather=True),
    "trainer_default": Way(trainer=True),
    "trainer_gather": Way(trainer=True, gather=True),
    "trainer_gather_by_microbatch": Way(trainer=True, gather=True, apart=True),
    "trainer_cached_gather": Way(trainer=True, gather=True, cached=True),
    "mnrl_gather_unequal": Way(gather=True),
}
ANOTHER = {"query": None, "document": None}
GATHERED: Text = {
    "zh": "gather_across_devices=True：别的卡上的嵌入连同梯度一起收集，每张卡算自己那几行。",
    "en": "gather_across_devices=True: embeddings of all ranks are gathered with their gradients, and every rank "
    "computes its own rows.",
}
SETTINGS = (
    Setting(
        "mnrl_default",
        {"zh": "MultipleNegativesRankingLoss，默认", "en": "MultipleNegativesRankingLoss, defaults"},
        {
            "zh": "gather_across_devices=False：负例只在自己的卡上找，多卡不会带来更多负例，方向与整批的梯度不同。",
            "en": "gather_across_devices=False: negatives come from the rank's own batch only. More ranks bring no "
            "more negatives, and the gradient has another direction than that of the whole batch.",
        },
        {"pairs": ANOTHER},
    ),
    Setting(
        "mnrl_default_by_rank",
        {
            "zh": "MultipleNegativesRankingLoss，默认，与各卡损失的均值比较",
            "en": "MultipleNegativesRankingLoss, defaults, beside the mean of the ranks' losses",
        },
        {
            "zh": "同一种设置，参照换成各卡只用自己的对所算损失的均值：它就是这个目标。",
            "en": "The same setting beside another reference, the mean of what each rank computes from its own pairs: "
            "that is its objective.",
        },
        {"pairs": "full_batch"},
        labels=("reference: mean over ranks",),
    ),
    Setting(
        "mnrl_gather",
        {"zh": "MultipleNegativesRankingLoss，跨卡收集", "en": "MultipleNegativesRankingLoss, gathered"},
        GATHERED,
        {"pairs": "full_batch"},
    ),
    Setting(
        "symmetric_default",
        {"zh": "MultipleNegativesSymmetricRankingLoss，默认", "en": "MultipleNegativesSymmetricRankingLoss, defaults"},
        {
            "zh": "两个方向的损失，默认同样不跨卡收集。",
            "en": "The loss in both directions; it does not gather by default either.",
        },
        {"pairs": ANOTHER},
    ),
    Setting(
        "symmetric_gather",
        {
            "zh": "MultipleNegativesSymmetricRankingLoss，跨卡收集",
            "en": "MultipleNegativesSymmetricRankingLoss, gathered",
        },
        GATHERED,
        {"pairs": "full_batch"},
    ),
    Setting(
        "all_directions_gather",
        {
            "zh": "MultipleNegativesRankingLoss，四个方向，跨卡收集",
            "en": "MultipleNegativesRankingLoss, four directions, gathered",
        },
        {
            "zh": "查询对查询、文档对文档也作负例，放进同一个 softmax；跨卡收集后与整批相同。",
            "en": "Queries beside queries and documents beside documents are negatives too, in one softmax; gathered, "
            "it is the full batch.",
        },
        {"pairs": "full_batch"},
    ),
    Setting(
        "trainer_default",
        {"zh": "Trainer，MultipleNegativesRankingLoss 默认", "en": "Trainer, MultipleNegativesRankingLoss, defaults"},
        {
            "zh": "用 SentenceTransformerTrainer 训练一个极小的 BERT；每张卡只看自己的负例。",
            "en": "SentenceTransformerTrainer with a tiny BERT; every rank has its own negatives only.",
        },
        {"pairs": {"encoder": None}},
    ),
    Setting(
        "trainer_gather",
        {"zh": "Trainer，跨卡收集", "en": "Trainer, gathered"},
        {
            "zh": "累积 1 步时与整批相同；累积两步时，参照是整个窗口 12 对互为负例的一个损失：累积不会带来更多负例。",
            "en": "Without accumulation it is the full batch. With two micro-batches the reference is one loss in "
            "which all 12 pairs of the window are each other's negatives: accumulation adds no negatives.",
        },
        {"pairs": "full_batch", "pairs_accumulated": {"encoder": None}},
    ),
    Setting(
        "trainer_gather_by_microbatch",
        {
            "zh": "Trainer，跨卡收集，与各微批损失的均值比较",
            "en": "Trainer, gathered, beside the mean over micro-batches",
        },
        {
            "zh": "同一种设置，参照换成两个微批各自跨卡损失的均值：它就是这个目标。",
            "en": "The same setting beside another reference, the mean of the two micro-batches' losses over all "
            "ranks: that is its objective.",
        },
        {"pairs_accumulated": "full_batch"},
        labels=("reference: mean over micro-batches",),
    ),
    Setting(
        "trainer_cached_gather",
        {
            "zh": "Trainer，CachedMultipleNegativesRankingLoss，跨卡收集",
            "en": "Trainer, CachedMultipleNegativesRankingLoss, gathered",
        },
        {
            "zh": "分成每次 2 条的小批前向、缓存嵌入的梯度再反向：省内存，梯度不变。",
            "en": "Embeds 2 texts at a time, keeps the gradients of the embeddings, and goes backward piece by piece: "
            "less memory, the same gradient.",
        },
        {"pairs": "full_batch"},
    ),
    Setting(
        "mnrl_gather_unequal",
        {
            "zh": "MultipleNegativesRankingLoss，跨卡收集，各卡对数不等",
            "en": "MultipleNegativesRankingLoss, gathered, unequal ranks",
        },
        {
            "zh": "收集要求各卡的形状相同；对数不等时 Gloo 会中止进程。Trainer 在 DDP 下自己打开 "
            "dataloader_drop_last；自己写的循环也要丢掉不满的批次。",
            "en": "Gathering needs equal shapes on all ranks; with unequal numbers of pairs Gloo aborts the process. "
            "Under DDP the Trainer turns dataloader_drop_last on by itself; a loop of one's own has to do the same.",
        },
        {"pairs_unequal": "aborts"},
    ),
)


def run(setting: str, scenario: Scenario, rank: int, world_size: int) -> Contrastive:
    way = WAYS[setting]
    if way.trainer:
        return tiny_bert.train(scenario, gather=way.gather, cached=way.cached, by_microbatch=way.apart)
    framework, reference = LOSSES[way.loss]
    loss = framework(nn.Identity(), gather_across_devices=way.gather)
    return contrastive_pairs.measure(
        lambda queries, documents, _: loss.compute_loss_from_embeddings([queries, documents], None),
        lambda queries, documents, _: reference(queries, documents, SCALE),
        scenario,
        rank,
        {},
        by_rank=way.apart,
    )
