"""Controls: could a row have passed for the wrong reason?"""

from collections.abc import Mapping, Sequence

from samestep.app.evidence.bags import Control, Row, Text
from samestep.experiments.fsdp_timeline.cases import FOR_FSDP, Case
from samestep.experiments.fsdp_timeline.step import Measured
from samestep.experiments.fsdp_timeline.storages import KINDS
from samestep.experiments.results import control

TITLES: dict[str, Text] = {
    "held": {
        "zh": "每个 FSDP2 进程在某一刻都持有过每一类存储",
        "en": "every FSDP2 process held storages of every kind at some moment",
    },
    "counted": {
        "zh": "每个进程都有集合通信，次数与看到的张量相符，每次都发出字节",
        "en": "every process communicated, as often as tensors were seen, and sent bytes each time",
    },
    "returned": {
        "zh": "FSDP2 的一步结束时回到开始时的字节数，其间确实更多",
        "en": "a step of FSDP2 ends with the bytes it began with, and held more in between",
    },
    "step": {
        "zh": "被记录的一步确实更新了每个进程的参数",
        "en": "the recorded step updated every process's parameters",
    },
    "both_ways": {
        "zh": "每种预期都至少有一处必须一致：没有一种是处处都错的",
        "en": "every expectation must agree somewhere: none is wrong everywhere",
    },
}


def controls(known: Sequence[Case], measured: Mapping[str, Sequence[Measured]], rows: Sequence[Row]) -> list[Control]:
    """Nothing that was compared is empty, and no expectation is wrong whatever happens."""
    everyone = [rank for ranks in measured.values() for rank in ranks]
    cut = [rank for case in known if not case.ddp for rank in measured[case.name]]
    held = {kind: min(max(moment.held[kind] for moment in rank.moments) for rank in cut) for kind in KINDS}
    fewest = min(sum(rank.collectives) for rank in everyone)
    seen = all(len(rank.sent) == sum(rank.collectives) and all(rank.sent) for rank in everyone)
    back = all(rank.moments[0].held == rank.moments[-1].held for rank in cut)
    growth = min(max(moment.total for moment in rank.moments) - rank.moments[0].total for rank in cut)
    moved = sum(rank.moved > 0 for rank in everyone)
    right = {
        name: sum("agrees" in each["expected"].values() for each in rows if each["path"] == name) for name in FOR_FSDP
    }
    return [
        control("held", TITLES["held"], min(held.values()) > 0, **held),
        control("counted", TITLES["counted"], fewest > 0 and seen, fewest=fewest),
        control("returned", TITLES["returned"], back and growth > 0, smallest_growth=growth),
        control("step", TITLES["step"], moved == len(everyone), steps=moved),
        control("both_ways", TITLES["both_ways"], min(right.values()) > 0, **right),
    ]
