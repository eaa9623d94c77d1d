"""By how much is a gradient too large when nobody divides? D processes, M micro-batches, mean losses.

    python -m experiments run gradient_scaling

Set-up. A small network, N = 12·D samples, every process accumulates M micro-batches of N/(D·M) samples with mean
losses; real DistributedDataParallel on Gloo, averaging (its default) or adding up (a communication hook).

Reference. g* = the gradient of the mean loss over all N samples, one process, one batch.

What is compared. The gradient against g*, and against the multiple of g* that theory names: M·D for a sum over
processes, M for a mean, 1 where the loss or the gradient is scaled. The negative control splits 24 samples over 3
processes as 3 + 3 + 2: means of unequal micro-batches are no multiple of g* at all, so no factor repairs them.
"""

import contextlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

from samestep.app.evidence.bags import DIFFERS, Control, Expectation, Json, Result, Row, Text
from samestep.experiments.measured import difference, environment, plain
from samestep.experiments.ranks.world import World, collectives
from samestep.experiments.results import calculator_agrees, control, result, row

QUESTION: Text = {
    "zh": "累积 M 个微批、D 张卡归约之后，梯度是基准的几倍？",
    "en": "After M micro-batches and a reduction over D processes, which multiple of the reference is the gradient?",
}
PROCESSES = 3
SCOPE: Text = {
    "zh": "CPU、Gloo、float64，小型网络，均方误差。不涉及 CUDA/NCCL、混合精度与训练质量。",
    "en": "CPU, Gloo, float64, a small network, squared error. Says nothing of CUDA/NCCL, mixed precision or training "
    "quality.",
}
SEED = 5
Group = dist.ProcessGroup


# ---- set-up -----------------------------------------------------------------------------------------------------


class Case(NamedTuple):
    """`sizes`: samples in each micro-batch of a process, the same on every process."""

    replicas: int
    sizes: tuple[int, ...]

    @property
    def samples(self) -> int:
        return self.replicas * sum(self.sizes)

    @property
    def equal(self) -> bool:
        return len(set(self.sizes)) == 1

    @property
    def name(self) -> str:
        return f"d{self.replicas}_m{len(self.sizes)}" + ("" if self.equal else "_unequal")

    @property
    def title(self) -> Text:
        shape = f"D = {self.replicas}, M = {len(self.sizes)}, N = {self.samples}"
        if self.equal:
            return {"zh": shape, "en": shape}
        split = " + ".join(map(str, self.sizes))
        return {"zh": f"{shape}，每卡 {split}", "en": f"{shape}, {split} a process"}


def cases(replicas: int) -> list[Case]:
    equal = [Case(replicas, (12 // count,) * count) for count in (1, 2, 3, 4)]
    return [*equal, Case(3, (3, 3, 2))] if replicas == 3 else equal


class Path(NamedTuple):
    """`loss(case, k)` multiplies the mean loss of micro-batch k; `gradient(case)` multiplies the reduced gradient.

    `multiple(case)` is the multiple of g* that must come out of equal micro-batches, `scheme` the same choice in the
    terms of the wiki's calculator.
    """

    title: Text
    reduction: str
    multiple: Callable[[Case], int]
    loss: Callable[[Case, int], float] = lambda case, k: 1.0
    gradient: Callable[[Case], float] = lambda case: 1.0
    right_when_unequal: bool = False


PATHS: dict[str, Path] = {
    "sum": Path(
        {"zh": "求和，不缩放：M·D 倍", "en": "summed, nothing scaled: M·D times"},
        "sum",
        lambda case: len(case.sizes) * case.replicas,
    ),
    "mean": Path(
        {"zh": "DDP 求平均，不缩放：M 倍", "en": "averaged by DDP, nothing scaled: M times"},
        "mean",
        lambda case: len(case.sizes),
    ),
    "sum_gradient_scaled": Path(
        {"zh": "求和，梯度再除以 M·D", "en": "summed, gradient divided by M·D"},
        "sum",
        lambda case: 1,
        gradient=lambda case: 1 / (len(case.sizes) * case.replicas),
    ),
    "mean_loss_scaled": Path(
        {"zh": "DDP 求平均，损失先除以 M", "en": "averaged by DDP, loss divided by M"},
        "mean",
        lambda case: 1,
        loss=lambda case, k: 1 / len(case.sizes),
    ),
    "mean_by_count": Path(
        {"zh": "DDP 求平均，损失按样本数加权 D·n/N", "en": "averaged by DDP, loss weighted by its count, D·n/N"},
        "mean",
        lambda case: 1,
        loss=lambda case, k: case.replicas * case.sizes[k] / case.samples,
        right_when_unequal=True,
    ),
}


def network() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 1))


def samples(count: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(SEED)
    both = torch.randn(count, 6, generator=generator, device="cpu").to(torch.get_default_device())
    return both[:, :5], both[:, 5:]


def sum_hook(group: Group, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:  # type: ignore[name-defined]
    """Add up over processes and leave the division to the caller."""
    future = dist.all_reduce(bucket.buffer(), group=group, async_op=True).get_future()
    return cast("torch.futures.Future[Tensor]", future.then(lambda done: done.value()[0]))


# ---- run --------------------------------------------------------------------------------------------------------


class Measured(NamedTuple):
    """Flat gradients of one process: accumulated before, and after the reduction; and of its own samples' mean."""

    accumulated: Tensor
    reduced: Tensor
    own_mean: Tensor
    collectives: int


def measure(group: Group, case: Case, path: Path) -> Measured:
    """Accumulate this process's micro-batches; only the last backward communicates."""
    rank = dist.get_rank(group)
    x, y = (each[rank * sum(case.sizes) : (rank + 1) * sum(case.sizes)] for each in samples(case.samples))
    model = network()
    replica = DistributedDataParallel(model, process_group=group)
    if path.reduction == "sum":
        replica.register_comm_hook(group, sum_hook)
    local = [torch.zeros_like(parameter) for parameter in model.parameters()]
    for total, parameter in zip(local, model.parameters(), strict=True):  # tensor hooks see gradients before DDP does
        parameter.register_hook(partial(_add, total))  # type: ignore[no-untyped-call]
    count, start = collectives(group), 0
    for k, size in enumerate(case.sizes):
        last = k == len(case.sizes) - 1
        with contextlib.nullcontext() if last else replica.no_sync():
            loss = mse_loss(replica(x[start : start + size]), y[start : start + size])
            torch.autograd.backward(path.loss(case, k) * loss)
        start += size
    count = collectives(group) - count
    reduced = gradient_of(model) * path.gradient(case)
    return Measured(torch.cat([total.flatten() for total in local]), reduced, reference(x, y), count)


def _add(total: Tensor, gradient: Tensor) -> None:
    total += gradient  # and return nothing: what a hook returns would replace the gradient


def gradient_of(model: nn.Module) -> Tensor:
    return torch.cat([cast(Tensor, parameter.grad).flatten() for parameter in model.parameters()])


def reference(x: Tensor, y: Tensor) -> Tensor:
    """g*: the flat gradient of the mean loss of all given samples."""
    model = network()
    torch.autograd.backward(mse_loss(model(x), y))
    return gradient_of(model)


def run(world: World) -> Result | None:
    """D = 2 and 3 as far as the world is large enough, and its own size if it is larger."""
    processes = world.processes(PROCESSES)
    sizes = sorted({size for size in (2, 3, processes) if 2 <= size <= processes})
    if not sizes:
        raise ValueError("gradient_scaling needs at least two processes")
    mine: dict[tuple[str, str], Measured] = {}
    for size in reversed(sizes):
        group = world.first(size)
        if group is None:
            continue
        for case in cases(size):
            world.step(f"gradient_scaling: {case.title['en']}")
            for name, path in PATHS.items():
                mine[case.name, name] = measure(group, case, path)
    everybody = world.gather(mine)
    if world.rank:
        return None
    world.step("gradient_scaling: compare")
    known = [case for size in sizes for case in cases(size)]
    rows = [
        compare(case, name, path, [everybody[rank][case.name, name] for rank in range(case.replicas)])
        for case in known
        for name, path in PATHS.items()
    ]
    shapes: dict[str, Json] = {
        case.name: {"replicas": case.replicas, "samples": case.samples, "micro_batches": list(case.sizes)}
        for case in known
    }
    setup: dict[str, Json] = {"seed": SEED, "network": "5-4-1, tanh", "cases": shapes}
    return result(
        __name__,
        processes,
        question=QUESTION,
        scope=SCOPE,
        setup=setup,
        cases={case.name: case.title for case in known},
        paths={name: path.title for name, path in PATHS.items()},
        rows=rows,
        controls=[*controls(known), calculator_agrees(__name__, setup, rows)],
        environment=environment(),
    )


# ---- compare ----------------------------------------------------------------------------------------------------


def compare(case: Case, name: str, path: Path, ranks: list[Measured]) -> Row:
    """`gradient` against g*; `multiple` against the named multiple of g*, or against the nearest one if unequal."""
    wanted = reference(*samples(case.samples))
    got = ranks[0].reduced
    nearest = float(got @ wanted / (wanted @ wanted))
    right = path.right_when_unequal or (case.equal and path.multiple(case) == 1)
    multiple = float(path.multiple(case)) if case.equal or path.right_when_unequal else nearest
    counted = case.equal or path.right_when_unequal
    differences = {"gradient": difference(got, wanted), "multiple": difference(got, multiple * wanted)}
    expected: Mapping[str, Expectation] = {"multiple": "agrees" if counted else "differs"}
    steep = wanted.abs() > 0.05 * wanted.abs().max()  # ratios of elements near 0 are noise
    ratios = got[steep] / wanted[steep]
    accumulated = float(ranks[0].accumulated @ ranks[0].own_mean / (ranks[0].own_mean @ ranks[0].own_mean))
    return row(
        case.name,
        name,
        path.title,
        "agrees" if right else "differs",
        differences,
        expected=expected,
        also=all(torch.equal(rank.reduced, got) and rank.collectives == 1 for rank in ranks),
        values={
            "factor": nearest,
            "smallest_ratio": float(ratios.min()),
            "largest_ratio": float(ratios.max()),
            "accumulated_factor": accumulated,
            "collectives": ranks[0].collectives,
            "replicas_agree": all(torch.equal(rank.reduced, got) for rank in ranks),
        },
    )


# ---- controls ---------------------------------------------------------------------------------------------------


def controls(known: list[Case]) -> list[Control]:
    """No reference is zero."""
    smallest = min(float(reference(*samples(case.samples)).abs().max()) for case in known)
    title: Text = {"zh": "每个参考梯度都不为零", "en": "no reference gradient is zero"}
    return [control("moves", title, smallest > DIFFERS, smallest_maximum=plain(smallest))]
