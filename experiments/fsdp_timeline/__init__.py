"""What does a process really hold, byte for byte, at every moment of an FSDP2 step, and what does it communicate?

    python -m experiments run fsdp_timeline

Set-up. A model of one-dimensional layers and a head that belongs to the root, cut by `fully_shard`, AdamW, real Gloo
processes: two with sizes that P divides, more with sizes that it does not. The second step is the one that counts.
After each of FSDP2's own methods (torch 2.13) the storages of all groups are added up by kind; CommDebugMode counts
the collectives, and the tensors handed to them tell the bytes.

Reference. What the wiki's calculator `fsdp_timeline` says of the same settings, every moment and kind of it: integers,
so right is a difference of 0 bytes. Optimizer states are not padded: a rank with a shorter shard holds that much less.

What is compared. Bytes at rest, at the optimizer's step and at the peak, all moments, collectives, bytes sent, with
the calculator, and with expectations that are wrong for most settings and right for some: other policies, another
dtype, no prefetching, everything in full as under DDP (which one case runs), a P-th of that at all moments.

Read on in `cases`, `model`; `storages`, `traffic`, `step`; `accounts`, `checks`.
"""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

import torch
from torch.distributed.device_mesh import DeviceMesh

from samestep.app.evidence.bags import Json, Result, Text
from samestep.experiments.fsdp_timeline.accounts import compare
from samestep.experiments.fsdp_timeline.cases import FOR_DDP, FOR_FSDP, PATHS, Case, cases_of
from samestep.experiments.fsdp_timeline.checks import controls
from samestep.experiments.fsdp_timeline.step import Measured, observe, observe_ddp
from samestep.experiments.fsdp_timeline.storages import KINDS
from samestep.experiments.fsdp_timeline.traffic import COLLECTIVES
from samestep.experiments.measured import environment
from samestep.experiments.ranks.world import World
from samestep.experiments.results import result

QUESTION: Text = {
    "zh": "FSDP2 的一步里，每个进程每一刻持有多少字节，一共通信多少？",
    "en": "How many bytes does a process hold at every moment of an FSDP2 step, and how much does it communicate?",
}
PROCESSES = 4
SCOPE: Text = {
    "zh": "CPU、Gloo、torch 2.13 的 eager 模式，几千个参数；数的是存储的大小，分片为 float32，"
    "计算为 float32 或 bfloat16；发出的字节由交给集合通信的张量按环形算法推算。"
    "不含激活值、临时拷贝、缓存分配器与时间，不涉及 CUDA/NCCL。",
    "en": "CPU, Gloo, torch 2.13 in eager mode, a few thousand parameters; sizes of storages are counted, with float32 "
    "shards computed in float32 or bfloat16; bytes sent are reckoned from the tensors handed to the collectives, by "
    "the ring. Says nothing of activations, temporary copies, caching allocators or time, nor of CUDA/NCCL.",
}


def measure(world: World, case: Case) -> Measured | None:
    """None on a rank that the case does not use."""
    group = world.first(case.ranks)
    if group is None:
        stand_by(world, case)
        return None
    if case.ddp:
        return observe_ddp(case.body, group)
    return observe(case.body, DeviceMesh.from_group(group, world.device.type))


def stand_by(world: World, case: Case) -> None:
    """Making a group takes all ranks of the world, and `fully_shard` makes its own for a policy that is a number."""
    policy = case.body["reshard_after_forward"]
    if not isinstance(policy, bool):
        for _ in case.body["parameters"]:
            DeviceMesh(world.device.type, torch.arange(case.ranks).view(-1, policy))


def run(world: World) -> Result | None:
    """P = 2 and 4 as far as the world is large enough, and its own size if that is another."""
    processes = world.processes(PROCESSES)
    known = [case for size in sorted({2, 4, processes}) if size <= processes for case in cases_of(size)]
    if processes < 2:
        raise ValueError("fsdp_timeline needs at least two processes")
    mine: dict[str, Measured | None] = {}
    for case in known:
        world.step(f"fsdp_timeline: {case.title['en']}")
        mine[case.name] = measure(world, case)
    everybody = world.gather(mine)
    if world.rank:
        return None
    measured = {case.name: [cast(Measured, rank[case.name]) for rank in everybody[: case.ranks]] for case in known}
    write(world.folder / __name__.rpartition(".")[2] / "timeline.csv", measured)
    rows = [compare(case, path, measured[case.name]) for case in known for path in (FOR_DDP if case.ddp else FOR_FSDP)]
    bodies: dict[str, Json] = {case.name: cast(Json, case.body) for case in known}
    return result(
        __name__,
        processes,
        question=QUESTION,
        scope=SCOPE,
        setup={"cases": bodies, "kinds": list(KINDS), "collectives": list(COLLECTIVES)},
        cases={case.name: case.title for case in known},
        paths={name: path.title for name, path in PATHS.items()},
        rows=rows,
        controls=controls(known, measured, rows),
        environment=environment() | {"dtype": "float32, bfloat16"},  # of what is measured; the default plays no part
    )


def write(place: Path, measured: Mapping[str, Sequence[Measured]]) -> None:
    """Every moment of every rank, in bytes."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.open("w", encoding="utf-8", newline="") as stream:
        lines = csv.writer(stream, lineterminator="\n")
        lines.writerow(["case", "rank", "moment", "phase", "event", "group", *KINDS, "total"])
        for name, ranks in measured.items():
            for rank, each in enumerate(ranks):
                for number, moment in enumerate(each.moments):
                    lines.writerow([name, rank, number, *moment.key, *moment.held.values(), moment.total])
