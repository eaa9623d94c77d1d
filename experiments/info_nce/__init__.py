"""Do remote negatives need their gradient? P processes, one pair each, one contrastive loss.

    python -m experiments run info_nce

Set-up. Two shared encoders, qᵢ = w_q ⊙ aᵢ and dᵢ = w_d ⊙ bᵢ, at w_q = w_d = 1; rank i owns pair i. The objective is
the mean over queries of −log softmax(qᵢ·dⱼ/τ) at j = i, all documents being candidates. Real Gloo processes and real
DistributedDataParallel, which averages the parameters' gradients; one SGD step.

Reference. One process that holds all pairs, by autograd.

What is compared. Loss, gradients of the representations at their owner (divided by P, as DDP will do), parameter
gradients after DDP, parameters after the step; and the replicas with each other. The wiki's calculator must agree with
every path. The antisymmetric fixture of the page makes a detached gradient exactly half of the right one, as if a
factor were missing; the asymmetric one shows that it is another direction.

Read on in `fixtures`, `paths`, `update`, `comparison`.
"""

from typing import cast

from samestep.app.evidence.bags import Json, Result, Row, Text
from samestep.experiments.info_nce.comparison import compare, controls
from samestep.experiments.info_nce.fixtures import Fixture, fixtures
from samestep.experiments.info_nce.paths import PATHS
from samestep.experiments.info_nce.update import LEARNING_RATE, Measured, measure, reference
from samestep.experiments.measured import environment
from samestep.experiments.ranks.world import World
from samestep.experiments.results import calculator_agrees, result

QUESTION: Text = {
    "zh": "每张卡只算自己的查询，远端文档的梯度可以切断吗？",
    "en": "Every rank computes its own queries: may the gradient of remote documents be cut off?",
}
PROCESSES = 4
SCOPE: Text = {
    "zh": "CPU、Gloo、float64，每卡一对样本，两个共享的逐维权重。不涉及 CUDA/NCCL、混合精度、训练质量与通信时延。",
    "en": "CPU, Gloo, float64, one pair a rank, two shared weights per dimension. Says nothing of CUDA/NCCL, mixed "
    "precision, training quality or communication time.",
}


def run(world: World) -> Result | None:
    """P = 2, 3, 4 as far as the world is large enough, and its own size if it is larger."""
    processes = world.processes(PROCESSES)
    sizes = sorted({size for size in (2, 3, 4, processes) if 2 <= size <= processes})
    if not sizes:
        raise ValueError("info_nce needs at least two processes")
    mine: dict[tuple[str, str], Measured] = {}
    for size in reversed(sizes):
        group = world.first(size)
        if group is None:
            continue
        for case, fixture in fixtures(size).items():
            world.step(f"info_nce: {fixture.title['en']}")
            for name, path in PATHS.items():
                mine[case, name] = measure(group, fixture, path)
    everybody = world.gather(mine)
    if world.rank:
        return None
    world.step("info_nce: compare")
    known = {case: fixture for size in sizes for case, fixture in fixtures(size).items()}
    rows: list[Row] = []
    for case, fixture in known.items():
        wanted = reference(fixture)
        for name, path in PATHS.items():
            ranks = [everybody[rank][case, name] for rank in range(len(fixture.a))]
            rows.append(compare(case, name, path, ranks, wanted))
    note: dict[str, Json] = {"learning_rate": LEARNING_RATE, "fixtures": {case: as_json(known[case]) for case in known}}
    return result(
        __name__,
        processes,
        question=QUESTION,
        scope=SCOPE,
        setup=note,
        cases={case: fixture.title for case, fixture in known.items()},
        paths={name: path.title for name, path in PATHS.items()},
        rows=rows,
        controls=[*controls(rows, known), calculator_agrees(__name__, note, rows)],
        environment=environment(),
    )


def as_json(fixture: Fixture) -> Json:
    return cast(Json, {"a": fixture.a, "b": fixture.b, "temperature": fixture.temperature})
