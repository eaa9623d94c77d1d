"""Gradients on several ranks: one norm, one coefficient, one decision. What do other ways of counting do?

    python -m experiments run clip_ownership

Set-up. Two real processes, scaled gradients, initial parameters 1, plain SGD. Every independent element has one owner;
copies on other ranks do not count. The protocol makes three small scalar reductions, always in the same order:

    1. a 0/1 flag "something here is not finite"     maximum    any flag: all ranks skip
    2. the sum of squares of the elements I own      sum        its root is the norm
    3. my vote to update                             sum        must be 0 or P: the ranks have decided alike

Reference. One process that holds every independent element once; an update is skipped when any value is not finite.

What is compared. Norm, coefficient, applied gradient, parameters, decision and next loss scale, with the reference and
with the wiki's calculators. Wrong ways: clipping by each rank's own norm, counting every copy, deciding alone, finding
overflow by the maximum of the norms (a maximum over ranks may lose a NaN), and loss scales that differ between ranks.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple, cast

import torch
import torch.distributed as dist
from torch import Tensor

from samestep.app.evidence.bags import AGREES, DIFFERS, Control, Expectation, Json, Result, Row, Text
from samestep.experiments.measured import difference, environment, plain
from samestep.experiments.ranks.world import World, collectives
from samestep.experiments.results import calculator_agrees, control, result, row

QUESTION: Text = {
    "zh": "梯度分散在多张卡上时，范数、裁剪系数和跳步决策怎样统一？",
    "en": "With gradients on several ranks, how do they agree on norm, clipping coefficient and skipping?",
}
PROCESSES = 2
SCOPE: Text = {
    "zh": "CPU、Gloo、float64，两个进程，明确的拥有者，无动量 SGD。不调用 FSDP 的裁剪接口，不模拟整个 GradScaler。",
    "en": "CPU, Gloo, float64, two processes, explicit owners, SGD without momentum. Calls no FSDP clipping, "
    "imitates no complete GradScaler.",
}
LEARNING_RATE = 0.1
BACK_OFF = 0.5
Group = dist.ProcessGroup


# ---- set-up: scenes ---------------------------------------------------------------------------------------------


class Copy(NamedTuple):
    """What a rank holds of one gradient element, times its loss scale."""

    id: str
    scaled: float
    owner: bool = True


class Scene(NamedTuple):
    """`ranks[r]`: the copies of rank r, `scales[r]` its loss scale. `max_norm` None: nothing is clipped."""

    title: Text
    ranks: tuple[tuple[Copy, ...], tuple[Copy, ...]]
    scales: tuple[float, float]
    max_norm: float | None
    paths: tuple[str, ...]


CLIPPING = ("global_owner", "per_rank", "every_copy")
SKIPPING = ("coordinated", "alone", "maximum_of_norms")
SCALING = ("agreed_scale", "own_scale")
_SHARDS = ((Copy("a", 24.0),), (Copy("b", 32.0),))
_WITH_COPY = ((Copy("a", 24.0), Copy("shared", 96.0)), (Copy("b", 32.0), Copy("shared", 96.0, owner=False)))


def _overflow(first: float, second: float, zh: str, en: str) -> Scene:
    return Scene({"zh": zh, "en": en}, ((Copy("a", first),), (Copy("b", second),)), (65536.0, 65536.0), None, SKIPPING)


SCENES: dict[str, Scene] = {
    "shards": Scene(
        {"zh": "梯度 [3, 4] 各在一卡", "en": "gradient [3, 4], one element a rank"}, _SHARDS, (8, 8), 1.0, CLIPPING
    ),
    "replicated": Scene(
        {"zh": "再加一个两卡都有的 12", "en": "and a 12 that both ranks hold"}, _WITH_COPY, (8, 8), 1.0, CLIPPING
    ),
    "below_threshold": Scene(
        {"zh": "同上，阈值 20：不裁剪", "en": "the same with threshold 20: nothing to clip"},
        _WITH_COPY, (8, 8), 20.0, CLIPPING,
    ),
    "zero_norm": Scene(
        {"zh": "范数为 0", "en": "norm 0"}, ((Copy("a", 0.0),), (Copy("b", 0.0),)), (8, 8), 1.0, CLIPPING
    ),
    "zero_threshold": Scene({"zh": "阈值为 0", "en": "threshold 0"}, _SHARDS, (8, 8), 0.0, CLIPPING),
    "inf_on_rank_0": _overflow(math.inf, 65536.0, "rank 0 溢出为 inf", "inf on rank 0"),
    "inf_on_rank_1": _overflow(65536.0, math.inf, "rank 1 溢出为 inf", "inf on rank 1"),
    "nan_on_rank_0": _overflow(math.nan, 65536.0, "rank 0 出现 NaN", "NaN on rank 0"),
    "nan_on_rank_1": _overflow(65536.0, math.nan, "rank 1 出现 NaN", "NaN on rank 1"),
    "both_ranks": _overflow(math.inf, math.nan, "两卡都非有限", "both ranks not finite"),
    "scales_disagree": Scene(
        {"zh": "复制参数，两卡的损失缩放为 8 与 4", "en": "a replicated parameter, loss scales 8 and 4"},
        ((Copy("a", 24.0),), (Copy("a", 20.0, owner=False),)), (8, 4), None, SCALING,
    ),
}  # fmt: skip

PATHS: dict[str, Text] = {
    "global_owner": {"zh": "每个独立元素计一次", "en": "every independent element once"},
    "per_rank": {"zh": "各卡按自己的范数裁剪", "en": "each rank clips by its own norm"},
    "every_copy": {"zh": "每个副本都计入", "en": "every copy counted"},
    "coordinated": {"zh": "归约 0/1 标志，一起跳步", "en": "a 0/1 flag is reduced, all skip together"},
    "alone": {"zh": "各卡自行决定", "en": "each rank decides alone"},
    "maximum_of_norms": {"zh": "归约范数的最大值来发现溢出", "en": "overflow found by the maximum of the norms"},
    "agreed_scale": {"zh": "先统一损失缩放，再反传", "en": "ranks agree on one loss scale before backward"},
    "own_scale": {"zh": "各卡用自己的损失缩放", "en": "each rank uses its own loss scale"},
}

# What does not do what its path does in general: (scene, path) → row's expectation and its exceptions.
AGREES_EVERYWHERE = ("global_owner", "coordinated", "agreed_scale")
COLLECTIVES = {
    "global_owner": 3,
    "every_copy": 3,
    "coordinated": 3,
    "maximum_of_norms": 1,
    "agreed_scale": 2,
    "own_scale": 1,
}
NOTES: dict[tuple[str, str], Text] = {
    ("nan_on_rank_0", "maximum_of_norms"): {
        "zh": "这里只是碰巧：Gloo 的 MAX 是否保留 NaN 取决于 rank 顺序",
        "en": "by luck: whether Gloo's MAX keeps a NaN depends on the order of the ranks",
    },
    ("nan_on_rank_1", "maximum_of_norms"): {
        "zh": "Gloo 的 MAX 丢掉了 rank 1 的 NaN，两卡都照常更新",
        "en": "Gloo's MAX lost the NaN of rank 1, and both ranks updated",
    },
}
EXPECTED: dict[tuple[str, str], tuple[Expectation, dict[str, Expectation]]] = {
    ("shards", "every_copy"): ("agrees", {}),
    ("below_threshold", "per_rank"): ("agrees", {"norm": "differs"}),
    ("below_threshold", "every_copy"): ("agrees", {"norm": "differs"}),
    ("zero_norm", "per_rank"): ("agrees", {}),
    ("zero_norm", "every_copy"): ("agrees", {}),
    ("zero_threshold", "per_rank"): ("agrees", {"norm": "differs"}),
    ("zero_threshold", "every_copy"): ("agrees", {}),
    ("inf_on_rank_0", "maximum_of_norms"): ("agrees", {}),
    ("inf_on_rank_1", "maximum_of_norms"): ("agrees", {}),
    ("nan_on_rank_0", "maximum_of_norms"): ("agrees", {}),
    ("nan_on_rank_1", "maximum_of_norms"): ("differs", {"parameters": "undefined"}),
    ("both_ranks", "alone"): ("agrees", {}),
    ("both_ranks", "maximum_of_norms"): ("agrees", {}),
    ("scales_disagree", "own_scale"): ("differs", {"update": "agrees", "next_scale": "differs"}),
}


# ---- run --------------------------------------------------------------------------------------------------------


class Outcome(NamedTuple):
    """What a rank did: `update` and `next_scale` are scalars, the rest has one entry per element it holds."""

    unscaled: Tensor
    norm: Tensor
    coefficient: Tensor
    applied: Tensor
    parameters: Tensor
    update: Tensor
    next_scale: Tensor
    collectives: int = 0


def reduced(value: Tensor | float, operation: dist.ReduceOp.RedOpType, group: Group) -> Tensor:
    """One scalar, reduced over the ranks."""
    scalar = torch.as_tensor(value, dtype=torch.float64).clone()
    dist.all_reduce(scalar, operation, group=group)
    return scalar


def coefficient(norm: Tensor, max_norm: float | None) -> Tensor:
    """min(1, max_norm / norm), 1 for norm 0, and no epsilon."""
    if max_norm is None or norm == 0:
        return torch.tensor(1.0)
    return torch.clamp(max_norm / norm, max=1.0)


def finish(gradient: Tensor, norm: Tensor, factor: Tensor, update: bool, scale: float) -> Outcome:
    """The step, or none of it: then parameters stay, the coefficient has no meaning, and the loss scale backs off."""
    parameters = torch.ones_like(gradient)
    if not update:
        nothing = torch.full_like(norm, math.nan)
        return Outcome(
            gradient, norm, nothing, torch.zeros_like(gradient), parameters, torch.tensor(0.0),
            torch.tensor(scale * BACK_OFF),
        )  # fmt: skip
    applied = factor * gradient
    parameters = parameters - LEARNING_RATE * applied
    return Outcome(gradient, norm, factor, applied, parameters, torch.tensor(1.0), torch.tensor(float(scale)))


def protocol(gradient: Tensor, counted: Tensor, scale: float, max_norm: float | None, group: Group) -> Outcome:
    """The three reductions. `counted`: the elements whose squares this rank adds."""
    flag = reduced(float(not gradient.isfinite().all()), dist.ReduceOp.MAX, group)
    norm = reduced(gradient[counted].square().sum(), dist.ReduceOp.SUM, group).sqrt()
    update = not bool(flag)
    votes = reduced(float(update), dist.ReduceOp.SUM, group)
    if votes not in (0, dist.get_world_size(group)):
        raise RuntimeError(f"the ranks disagree: {votes:.0f} of them would update")
    return finish(gradient, norm, coefficient(norm, max_norm), update, scale)


def maximum_of_norms(gradient: Tensor, scale: float, group: Group) -> Outcome:
    """Look for overflow in the maximum of the norms, as if it could not lose a NaN."""
    norm = reduced(gradient.norm(), dist.ReduceOp.MAX, group)
    return finish(gradient, norm, torch.tensor(1.0), bool(norm.isfinite()), scale)


def replicated(scene: Scene, rank: int, path: str, group: Group) -> Outcome:
    """Average the scaled gradient of a replicated parameter, then undo the scale."""
    scale = scene.scales[rank]
    gradient = torch.tensor([copy.scaled for copy in scene.ranks[rank]]) / scale
    if path == "agreed_scale":
        scale = float(reduced(scale, dist.ReduceOp.MIN, group))
    averaged = reduced(gradient.squeeze() * scale, dist.ReduceOp.AVG, group).unsqueeze(0) / scale
    return finish(averaged, averaged.norm(), torch.tensor(1.0), True, scale)


def measure(scene: Scene, path: str, group: Group) -> Outcome:
    rank = dist.get_rank(group)
    scaled = torch.tensor([copy.scaled for copy in scene.ranks[rank]])
    owned = torch.tensor([copy.owner for copy in scene.ranks[rank]])
    scale = scene.scales[rank]
    gradient = scaled / scale
    if path in SCALING:
        return replicated(scene, rank, path, group)
    if path in ("global_owner", "coordinated"):
        return protocol(gradient, owned, scale, scene.max_norm, group)
    if path == "every_copy":
        return protocol(gradient, torch.ones_like(owned), scale, scene.max_norm, group)
    if path == "maximum_of_norms":
        return maximum_of_norms(gradient, scale, group)
    norm = gradient.norm()
    return finish(gradient, norm, coefficient(norm, scene.max_norm), bool(gradient.isfinite().all()), scale)


def reference(scene: Scene) -> list[Outcome]:
    """One process that holds all: what each rank should have done."""
    gradients = [
        torch.tensor([copy.scaled for copy in copies]) / scale
        for copies, scale in zip(scene.ranks, scene.scales, strict=True)
    ]
    scale = min(scene.scales)
    if scene.paths == SCALING:
        gradients = [torch.stack(gradients).mean(0)] * 2
    owned = [torch.tensor([copy.owner for copy in copies]) for copies in scene.ranks]
    norm = torch.cat([gradient[mine] for gradient, mine in zip(gradients, owned, strict=True)]).norm()
    update = all(bool(gradient.isfinite().all()) for gradient in gradients)
    factor = coefficient(norm, scene.max_norm)
    return [finish(gradient, norm, factor, update, scale) for gradient in gradients]


def run(world: World) -> Result | None:
    """All scenes on the first two ranks."""
    processes = world.processes(PROCESSES)
    if processes < 2:
        raise ValueError("clip_ownership needs at least two processes")
    group = world.first(2)
    mine: dict[tuple[str, str], Outcome] = {}
    if group is not None:
        for case, scene in SCENES.items():
            world.step(f"clip_ownership: {scene.title['en']}")
            for path in scene.paths:
                count = collectives(group)
                outcome = measure(scene, path, group)
                mine[case, path] = outcome._replace(collectives=collectives(group) - count)
    everybody = world.gather(mine)
    if world.rank:
        return None
    rows = [
        compare(case, path, scene, [everybody[0][case, path], everybody[1][case, path]])
        for case, scene in SCENES.items()
        for path in scene.paths
    ]
    setup: dict[str, Json] = {
        "learning_rate": LEARNING_RATE,
        "back_off": BACK_OFF,
        "parameter": 1.0,
        "scenes": {case: as_json(scene) for case, scene in SCENES.items()},
    }
    return result(
        __name__,
        processes,
        question=QUESTION,
        scope=SCOPE,
        setup=setup,
        cases={case: scene.title for case, scene in SCENES.items()},
        paths=PATHS,
        rows=rows,
        controls=[*controls(rows), calculator_agrees(__name__, setup, rows)],
        environment=environment(),
    )


def as_json(scene: Scene) -> Json:
    return {
        "ranks": [
            [{"id": copy.id, "scaled": plain(copy.scaled), "owner": copy.owner} for copy in copies]
            for copies in scene.ranks
        ],
        "scales": list(scene.scales),
        "max_norm": scene.max_norm,
    }


# ---- compare ----------------------------------------------------------------------------------------------------


def compare(case: str, path: str, scene: Scene, ranks: Sequence[Outcome]) -> Row:
    """Each rank against what the reference says that it should have done."""
    wanted = reference(scene)
    quantities = ["update", "parameters", "next_scale"]
    if scene.max_norm is not None:
        quantities = ["norm", "coefficient", "applied", *quantities]
    differences = {
        quantity: difference(_all(ranks, quantity), _all(wanted, quantity)) for quantity in quantities
    }  # fmt: skip
    right = path in AGREES_EVERYWHERE
    usual: Expectation = "agrees" if right else "differs"
    expectation, exceptions = EXPECTED.get((case, path), (usual, {}))
    expected: dict[str, Expectation] = {}
    if scene.max_norm is not None:  # clipping scenes always update, whatever they clip by
        expected = {"update": "agrees", "next_scale": "agrees"}
    owned = [torch.tensor([copy.owner for copy in copies]) for copies in scene.ranks]
    independent = torch.cat([rank.applied[mine] for rank, mine in zip(ranks, owned, strict=True)])
    alike = len({float(rank.update) for rank in ranks}) == 1
    return row(
        case,
        path,
        PATHS[path],
        expectation,
        differences,
        expected=expected | exceptions,
        also=all(rank.collectives == COLLECTIVES.get(path, 0) for rank in ranks),
        note=NOTES.get((case, path)),
        values={
            "norm": plain(ranks[0].norm) if path != "per_rank" else [plain(rank.norm) for rank in ranks],
            "coefficient": _coefficients(path, ranks),
            "clipped_norm": plain(independent.norm()),
            "decision": ["update" if rank.update else "skip" for rank in ranks],
            "ranks_decide_alike": alike,
            "collectives": ranks[0].collectives,
            "next_scale": [plain(rank.next_scale) for rank in ranks],
            "unscaled": [plain(rank.unscaled) for rank in ranks],
            "applied": [plain(rank.applied) for rank in ranks],
            "parameters": [plain(rank.parameters) for rank in ranks],
        },
    )


def _all(ranks: Sequence[Outcome], quantity: str) -> Tensor:
    return torch.cat([cast(Tensor, getattr(rank, quantity)).reshape(-1) for rank in ranks])


def _coefficients(path: str, ranks: Sequence[Outcome]) -> Json:
    """Null where a rank skipped."""
    each: list[Json] = [plain(rank.coefficient) if rank.update else None for rank in ranks]
    return each if path in ("per_rank", "alone") else each[0]


# ---- controls ---------------------------------------------------------------------------------------------------


def controls(rows: list[Row]) -> list[Control]:
    """Clipping was active where it is claimed; a framework's epsilon is another formula, if only just."""
    values = {each["id"]: each["values"] for each in rows}
    active = {case: cast(float, values[f"{case}-global-owner"]["coefficient"]) for case in ("shards", "replicated")}
    clipped: Text = {
        "zh": "声称裁剪的场景里系数确实小于 1",
        "en": "the coefficient is below 1 where clipping is claimed",
    }
    weights = torch.nn.Parameter(torch.ones(2))
    weights.grad = torch.tensor([3.0, 4.0])
    torch.nn.utils.clip_grad_norm_([weights], 1.0)
    away = float((weights.grad - torch.tensor([0.6, 0.8])).abs().max())
    epsilon: Text = {
        "zh": "torch 的 clip_grad_norm_ 在范数上加 1e-6，因此与 min(1, τ/n) 略有差别",
        "en": "torch's clip_grad_norm_ adds 1e-6 to the norm, so it differs a little from min(1, C/n)",
    }
    return [
        control("clipping_active", clipped, all(factor < 1 for factor in active.values()), **active),
        control("framework_epsilon", epsilon, AGREES < away < DIFFERS, max_abs_difference=away),
    ]
