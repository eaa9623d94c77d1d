"""open_clip: the softmax loss in the four ways of its two flags, and the sigmoid loss in its four implementations.

The package imports torchvision, which the losses do not need: `loss.py` is loaded from its file.
"""

from functools import cache
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from samestep.experiments.conformance.adapter import Contrastive, Setting
from samestep.experiments.conformance.frameworks import contrastive_pairs
from samestep.experiments.conformance.frameworks.contrastive_pairs import LOG_SCALE
from samestep.experiments.conformance.scenarios import Scenario

LABELS = ("loss.py alone",)
BIAS = -10.0
"""SigLIP's bias at the start of training."""
FLAGS = {
    "clip_default": (False, False),
    "clip_gather_with_grad": (False, True),
    "clip_local_loss": (True, False),
    "clip_local_loss_gather_with_grad": (True, True),
}
"""`local_loss`, `gather_with_grad`."""
EXCHANGES = {f"siglip_{exchange}": exchange for exchange in ("bidir", "shift", "reduce", "gather")}
"""`dist_impl`."""
SETTINGS = (
    *(
        Setting(
            name,
            {"zh": f"SigLipLoss，dist_impl={exchange}", "en": f"SigLipLoss, dist_impl={exchange}"},
            {
                "zh": "逐对的 sigmoid 损失，不需要归一化常数：各卡把文本嵌入传给别的卡，梯度也传回来。",
                "en": "A sigmoid for every combination, with no normaliser over the batch: text embeddings travel to "
                "the other ranks, and their gradients travel back.",
            },
            {"pairs": "full_batch"},
            labels=LABELS,
        )
        for name, exchange in EXCHANGES.items()
    ),
    Setting(
        "clip_default",
        {"zh": "ClipLoss，两个开关都关（命令行默认）", "en": "ClipLoss, both flags off (default of the command line)"},
        {
            "zh": "每张卡都算整个批次的损失，但梯度只流回自己的嵌入；DDP 再除以 P：编码器得到 1/P，"
            "温度在每张卡上都得到完整的梯度，仍是 1。",
            "en": "Every rank computes the loss of the whole batch, but its gradient reaches only the rank's own "
            "embeddings. After DDP's average encoders have 1/P of it; the temperature, whole on every rank, keeps 1.",
        },
        {"pairs": {"query": 0.5, "document": 0.5, "temperature": 1.0}},
        labels=LABELS,
    ),
    Setting(
        "clip_gather_with_grad",
        {"zh": "ClipLoss，gather_with_grad", "en": "ClipLoss, gather_with_grad"},
        {
            "zh": "收集嵌入时保留梯度：别的卡上的梯度相加后传回来，DDP 的平均正好抵消重复计算。",
            "en": "Gathered embeddings keep their gradients, which are summed over the ranks on the way back; DDP's "
            "average undoes that every rank computed the same loss.",
        },
        {"pairs": "full_batch"},
        labels=LABELS,
    ),
    Setting(
        "clip_local_loss",
        {"zh": "ClipLoss，local_loss，不带 gather_with_grad", "en": "ClipLoss, local_loss without gather_with_grad"},
        {
            "zh": "每张卡只算自己那几行，收集来的嵌入连自己的那份都是常数：嵌入作为正例和负例被别人比较时"
            "该得的梯度全丢了，编码器的方向是错的。",
            "en": "Every rank computes only its own rows, and all gathered embeddings are constants, its own copies "
            "too: what an embedding should hear as others' positive or negative is lost, and encoders get a wrong "
            "direction.",
        },
        {"pairs": {"query": None, "document": None, "temperature": 1.0}},
        labels=LABELS,
    ),
    Setting(
        "clip_local_loss_gather_with_grad",
        {"zh": "ClipLoss，local_loss 加 gather_with_grad", "en": "ClipLoss, local_loss with gather_with_grad"},
        {
            "zh": "每张卡只算自己那几行，梯度传回各自的主人：与整批相同。各卡对数不等时 Gloo 会中止进程，"
            "所以要丢掉最后不满的批次。",
            "en": "Every rank computes only its own rows, and gradients return to their owners: the full batch. With "
            "unequal numbers of pairs Gloo aborts the process, so the loader has to drop the last batch.",
        },
        {"pairs": "full_batch", "pairs_unequal": "aborts"},
        labels=LABELS,
    ),
)


def run(setting: str, scenario: Scenario, rank: int, world_size: int) -> Contrastive:
    ranks = {"rank": rank, "world_size": world_size}
    if setting in FLAGS:
        local_loss, gather_with_grad = FLAGS[setting]
        clip = losses().ClipLoss(local_loss=local_loss, gather_with_grad=gather_with_grad, **ranks)
        return contrastive_pairs.measure(
            lambda queries, documents, scalars: clip(queries, documents, scalars["temperature"].exp()),
            lambda queries, documents, scalars: contrastive_pairs.symmetric(
                queries, documents, scalars["temperature"].exp()
            ),
            scenario,
            rank,
            {"temperature": LOG_SCALE},
        )
    siglip = losses().SigLipLoss(dist_impl=EXCHANGES[setting], **ranks)
    return contrastive_pairs.measure(
        lambda queries, documents, scalars: siglip(queries, documents, scalars["temperature"].exp(), scalars["bias"]),
        lambda queries, documents, scalars: contrastive_pairs.sigmoid(
            queries, documents, scalars["temperature"].exp(), scalars["bias"]
        ),
        scenario,
        rank,
        {"temperature": LOG_SCALE, "bias": BIAS},
    )


@cache
def losses() -> Any:
    """open_clip's module of losses, without the package around it."""
    package = find_spec("open_clip")
    if package is None or not package.submodule_search_locations:
        raise ModuleNotFoundError("open_clip")
    spec = spec_from_file_location("open_clip_loss", Path(package.submodule_search_locations[0]) / "loss.py")
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError("open_clip.loss")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
