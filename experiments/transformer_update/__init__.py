"""Split into micro-batches and processes: is it still the same update of a whole Transformer?

    python -m experiments run transformer_update

Set-up. The trained tiny Transformer (298,176 parameters, see `train_tiny`), four real windows of 96 tokens and the
token after each, and a number of supervised labels at the end of every window, set by hand so that only the
denominators differ. From the same weights every path (see `paths`) makes one update: SGD with a fresh state,
and AdamW restored from step 800. Two processes under real DistributedDataParallel on Gloo hold two windows each.

Reference. One process, one batch of all four windows, sum of losses over the N labels divided by N; each optimizer is
compared with its own reference.

What is compared. Loss, and the largest absolute difference over all parameters of gradient, updated weights, AdamW's
moments and step; and the processes with each other, by digest. Every path has a stated expectation in every case: mean
rules must agree at equal counts, differ at unequal ones, and are undefined where a mean is taken over no labels.

Read on in `start`, `paths`, `findings`, `comparison`.
"""

from pathlib import Path
from typing import cast

import torch

from samestep.app.evidence.bags import Json, Result, TensorSet, Text, sha256_of
from samestep.experiments import corpus
from samestep.experiments.measured import arrays, environment, plain
from samestep.experiments.ranks.world import World
from samestep.experiments.results import result
from samestep.experiments.tensors import load, save
from samestep.experiments.tiny import tokenizer
from samestep.experiments.tiny.tiny_transformer import parameter_count
from samestep.experiments.transformer_update.comparison import compare, controls
from samestep.experiments.transformer_update.findings import MAX_NORM, TITLES, digests, measure, norm_of
from samestep.experiments.transformer_update.paths import (
    CASES,
    PATHS,
    Named,
    Share,
    gradient_of,
    labels,
    reference,
    window_sum,
)
from samestep.experiments.transformer_update.start import ADAMW_RATE, SGD_RATE, WINDOWS, Start, draw

QUESTION: Text = {
    "zh": "完整模型里，拆成微批和两进程后还是同一次更新吗？",
    "en": "In a whole model, split into micro-batches and two processes: is it still the same update?",
}
PROCESSES = 2
ALONE = True
NEEDS = ("train_tiny",)
CORPUS = True
SCOPE: Text = {
    "zh": "CPU float64、固定、无 dropout、显式 softmax 注意力，298,176 个参数，一次更新。不做 CUDA/NCCL、混合精度、"
    "裁剪或训练质量结论；监督后缀人工指定，没有聊天模板。",
    "en": "CPU float64, fixed, no dropout, explicit softmax attention, 298,176 parameters, one update. Nothing on "
    "CUDA/NCCL, mixed precision, clipping or training quality is concluded; the supervised suffixes are set by hand.",
}


def run(world: World) -> Result | None:
    """Two processes, or four. Options: `weights` (folder of train_tiny's files), `corpus` (folder)."""
    count = 4 if world.processes(PROCESSES) >= 4 else 2
    if world.size < count:
        raise ValueError("transformer_update needs at least two processes")
    folder = Path(cast(str, world.options["weights"]))
    learnt = tokenizer.Tokenizer.from_json((folder / "tokenizer.json").read_text("utf-8"))
    windows, origins = draw(corpus.read(Path(cast(str, world.options.get("corpus") or corpus.FOLDER))), learnt)
    start = Start(load(folder / "weights.safetensors"), load(folder / "optimizer.safetensors"), windows)
    group = world.first(count)
    everybody = world.gather(measure(world, start, group) if group is not None else {})[:count]
    if world.rank:
        return None
    world.step("transformer_update: compare")
    rows = [compare(key, [found[key] for found in everybody]) for key in everybody[0]]
    return result(
        __name__,
        count,
        question=QUESTION,
        scope=SCOPE,
        setup=setup(folder, start, origins),
        cases={name: case.title for name, case in CASES.items()},
        paths={name: path.title for name, path in PATHS.items()} | TITLES,
        rows=rows,
        controls=controls(start, rows, count),
        environment=environment(),
        tensors=keep(world.folder / "transformer_update", start, learnt),
    )


def keep(folder: Path, start: Start, learnt: tokenizer.Tokenizer) -> dict[str, TensorSet]:
    """The files of the bag: gradient sums of each window (all other gradients follow from them), windows, tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    sums: Named = {}
    for k in range(WINDOWS):
        model = start.model()
        wanted = labels(start.windows, CASES["unequal"].counts)
        torch.autograd.backward(window_sum(model, Share(start.windows[:, :-1], wanted, torch.tensor(1), 1), k))
        sums |= {f"window{k}.{name}": tensor for name, tensor in gradient_of(model).items()}
    (folder / "tokenizer.json").write_text(learnt.to_json(), "utf-8")
    return {
        "gradient_sums.safetensors": save(folder / "gradient_sums.safetensors", arrays(sums)),
        "windows.safetensors": save(folder / "windows.safetensors", arrays({"tokens": start.windows})),
    }


def setup(folder: Path, start: Start, origins: list[Json]) -> dict[str, Json]:
    references: dict[str, Json] = {}
    for name, case in CASES.items():
        if case.total:
            found = reference(start.model(), start.windows, case)
            references[name] = {
                "loss": plain(found.loss),
                "gradient_norm": norm_of(found.gradient),
                **digests(gradient=found.gradient),
            }
    initial: Json = [
        {"file": f"train_tiny/data/{name}", "sha256": sha256_of(folder / name)}
        for name in ("weights.safetensors", "optimizer.safetensors", "tokenizer.json")
    ]
    return {
        "parameters": parameter_count(start.model()),
        "initial": initial,
        "windows": origins,
        "supervision": {name: list(case.counts) for name, case in CASES.items()},
        "supervision_rule": "of the 96 labels of a window the last n count, all others are ignored",
        "sgd": {"learning_rate": SGD_RATE},
        "adamw": {"learning_rate": ADAMW_RATE, "state": "as after the last training step"},
        "max_norm": MAX_NORM,
        "references": references,
    }
