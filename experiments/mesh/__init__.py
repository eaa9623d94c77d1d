"""Gradients on a mesh of four ranks: which axes add, and what divides?

    python -m experiments run mesh

Set-up. Four Gloo processes, in float64, four meshes one after the other: tensor parallel with sequence-parallel norms
by DTensor (2 data × 2 tp ranks); a pipeline of two stages with a tied embedding by torch's own 1F1B (2 × 2); two
experts on four data ranks, whose tokens travel by all-to-all; one sequence in four slices, whose keys are gathered.

Reference. One process with the same weights and all the tokens, by autograd.

What is compared. Gradients of the classes of parameters after the right reduction (no difference allowed), and after
wrong ones: those must miss it by the very factor that mesh_ledger and pipeline_schedule predict, or, where a rank holds
one part of a sum, point elsewhere and add up to it over the ranks.
"""

from collections.abc import Mapping
from types import ModuleType
from typing import Any, cast

import torch.distributed as dist

from samestep.app.evidence.bags import DIFFERS, Control, Json, Result, Row, Text
from samestep.experiments.measured import environment
from samestep.experiments.mesh import context, experts, pipeline, tensor
from samestep.experiments.mesh.measuring import Found, Way, compared
from samestep.experiments.ranks.world import World
from samestep.experiments.results import control, result

QUESTION: Text = {
    "zh": "在四个 rank 的网格上，各类参数的梯度沿哪些轴相加，由什么来除？",
    "en": "On a mesh of four ranks, which axes add the gradient of each class of parameters, and what divides it?",
}
PROCESSES = 4
SCOPE: Text = {
    "zh": "CPU、Gloo、torch 2.13、float64，每种并行一个很小的模型。上下文并行用收集键来做，不是环形注意力；"
    "不涉及 NCCL、FSDP 与几种并行的叠加。",
    "en": "CPU, Gloo, torch 2.13, float64, one very small model for each kind. Context parallelism gathers the keys, "
    "it is no ring attention; says nothing of NCCL, FSDP or kinds combined.",
}
MODULES: Mapping[str, ModuleType] = {"tensor": tensor, "pipeline": pipeline, "experts": experts, "context": context}
CASES: dict[str, Text] = {
    "tensor": {"zh": "张量并行与序列并行（2 × 2）", "en": "tensor and sequence parallel (2 × 2)"},
    "pipeline": {"zh": "两阶段流水线（2 × 2）", "en": "a pipeline of two stages (2 × 2)"},
    "experts": {"zh": "专家并行（dp 4，ep 2）", "en": "expert parallel (dp 4, ep 2)"},
    "context": {"zh": "上下文并行（cp 4）", "en": "context parallel (cp 4)"},
}


def run(world: World) -> Result | None:
    """All four meshes; four ranks."""
    group = world.first(PROCESSES)
    if world.size != PROCESSES or group is None:
        raise ValueError("mesh needs four processes, neither more nor fewer")
    everybody = world.gather(measure(world, group))
    if world.rank:
        return None
    rows = [
        compared(case, path, way, [everybody[rank][case][path] for rank in range(summands(path))])
        for case, module in MODULES.items()
        for path, way in ways(module).items()
    ]
    return result(
        __name__,
        PROCESSES,
        question=QUESTION,
        scope=SCOPE,
        setup=_setup(),
        cases=CASES,
        paths={path: way.title for module in MODULES.values() for path, way in ways(module).items()},
        rows=rows,
        controls=controls(rows),
        environment=environment(),
        command=f"python -m experiments run {__name__.rpartition('.')[2]}",
    )


def measure(world: World, group: dist.ProcessGroup) -> dict[str, dict[str, Found]]:
    """Every way of every mesh on this rank."""
    found: dict[str, dict[str, Found]] = {}
    for case, title in CASES.items():
        world.step(f"mesh: {title['en']}")
        if case == "tensor":
            found[case] = tensor.measure()
        elif case == "context":
            found[case] = context.measure(world.rank, group)
        else:
            found[case] = cast(Any, MODULES[case]).measure(world.rank)
    return found


def ways(module: ModuleType) -> dict[str, Way]:
    return cast(dict[str, Way], module.WAYS)


def summands(path: str) -> int:
    """How many ranks are looked at: of parts those of one sum, which the first data rank has, else all."""
    return 2 if path in ("norm_not_reduced_over_tp", "tied_not_summed") else PROCESSES


def _setup() -> dict[str, Json]:
    return {
        "tensor": {"dp": tensor.AXES.dp, "tp": tensor.AXES.tp, "tokens": tensor.TOKENS},
        "pipeline": {"dp": pipeline.DATA_RANKS, "pp": pipeline.STAGES, "microbatches": pipeline.MICROBATCHES},
        "experts": {"dp": experts.AXES.dp, "ep": experts.AXES.ep, "tokens": experts.EACH * experts.AXES.ep},
        "context": {"cp": context.AXES.cp, "tokens": context.SLICE * context.AXES.cp},
        "predicted": {path: way.factor for module in MODULES.values() for path, way in ways(module).items()},
    }


def controls(rows: list[Row]) -> list[Control]:
    """Wrong factors are not all alike, and no predicted one is 1 by chance."""
    factors = sorted({way.factor for module in MODULES.values() for way in ways(module).values() if way.factor})
    wrong = [each for each in rows if each["expectation"] == "differs"]
    return [
        control(
            "factors",
            {"zh": "预言了不同的倍数", "en": "different factors are predicted"},
            len(factors) > 4,
            factors=cast(list[Json], factors),
        ),
        control(
            "wrong_ways_differ",
            {"zh": "每种错误的做法都看得出来", "en": "every wrong way is seen to be wrong"},
            all((each["max_abs_difference"]["gradient"] or 0.0) > DIFFERS for each in wrong),
            ways=len(wrong),
        ),
    ]
