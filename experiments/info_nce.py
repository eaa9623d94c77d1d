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
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import _functional_collectives as functional
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from samestep.app.evidence.bags import DIFFERS, Control, Expectation, Json, Result, Row, Text
from samestep.experiments.measured import difference, difference_over, environment, plain
from samestep.experiments.ranks.world import World, collectives
from samestep.experiments.results import calculator_agrees, control, result, row

QUESTION: Text = {
    "zh": "每张卡只算自己的 query，远端 document 的梯度可以切断吗？",
    "en": "Every rank computes its own queries: may the gradient of remote documents be cut off?",
}
PROCESSES = 4
SCOPE: Text = {
    "zh": "CPU、Gloo、float64，每卡一对样本，两个共享的逐维权重。不涉及 CUDA/NCCL、混合精度、训练质量与通信时延。",
    "en": "CPU, Gloo, float64, one pair a rank, two shared weights per dimension. Says nothing of CUDA/NCCL, mixed "
    "precision, training quality or communication time.",
}
LEARNING_RATE = 0.1


# ---- set-up: fixtures -------------------------------------------------------------------------------------------


class Fixture(NamedTuple):
    """`a` and `b` are [P, dimensions], row i on rank i; `temperature` is τ."""

    title: Text
    a: list[list[float]]
    b: list[list[float]]
    temperature: float


_A = [[1.0, 0.5], [-0.3, 2.0], [0.8, -1.2], [1.5, 0.4]]
_B = [[0.7, -0.4], [0.2, 1.1], [-0.9, 0.6], [1.3, -0.5]]


def fixtures(size: int) -> dict[str, Fixture]:
    """What `size` ranks of the world are to compute; names are unique over all sizes."""
    a = [*_A, *([math.cos(i), math.sin(2 * i)] for i in range(4, size))][:size]
    b = [*_B, *([math.sin(i), math.cos(3 * i)] for i in range(4, size))][:size]
    title: Text = {"zh": f"不对称样例，P = {size}，τ = 0.5", "en": f"asymmetric fixture, P = {size}, τ = 0.5"}
    found = {f"asymmetric_{size}": Fixture(title, a, b, 0.5)}
    if size == 2:
        page: Text = {
            "zh": "页面样例 q = [1, 2]，d = [1, −1]，τ = 1",
            "en": "the page's q = [1, 2], d = [1, −1], τ = 1",
        }
        found = {"page": Fixture(page, [[1.0], [2.0]], [[1.0], [-1.0]], 1.0)} | found
    return found


class Encoders(nn.Module):
    """q = w_q ⊙ a and d = w_d ⊙ b, one weight per dimension."""

    def __init__(self, dimensions: int) -> None:
        super().__init__()
        self.wq = nn.Parameter(torch.ones(dimensions))
        self.wd = nn.Parameter(torch.ones(dimensions))

    def forward(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        return self.wq * a, self.wd * b


# ---- set-up: ways to gather, and the paths made of them ---------------------------------------------------------

Group = dist.ProcessGroup
Gather = Callable[[Tensor, Group], Tensor]


class AllGather(torch.autograd.Function):
    """Rows of all ranks; backward sums over every rank that used a row and hands it to the row's owner."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, group: Group) -> Tensor:
        ctx.group = group
        parts = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, own.contiguous(), group=group)
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        gradient = gradients[0].contiguous()
        dist.all_reduce(gradient, group=ctx.group)
        return gradient.chunk(dist.get_world_size(ctx.group))[dist.get_rank(ctx.group)], None


class OwnSlice(AllGather):
    """The same rows; backward hands each rank its own slice of its own gradient and forgets to add the others'."""

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0].chunk(dist.get_world_size(ctx.group))[dist.get_rank(ctx.group)], None


def with_gradient(own: Tensor, group: Group) -> Tensor:
    return cast(Tensor, AllGather.apply(own, group))  # type: ignore[no-untyped-call]


def by_the_library(own: Tensor, group: Group) -> Tensor:
    return cast(Tensor, functional.wait_tensor(functional.all_gather_single(own, 0, group)))  # type: ignore[no-untyped-call]


def own_slice(own: Tensor, group: Group) -> Tensor:
    return cast(Tensor, OwnSlice.apply(own, group))  # type: ignore[no-untyped-call]


def remote_detached(own: Tensor, group: Group) -> Tensor:
    parts = list(detached(own, group).chunk(dist.get_world_size(group)))
    parts[dist.get_rank(group)] = own
    return torch.cat(parts)


def detached(own: Tensor, group: Group) -> Tensor:
    """Plain all_gather: it returns tensors without gradient and gives no warning."""
    parts = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, own.detach(), group=group)
    return torch.cat(parts)


def own_only(own: Tensor, group: Group) -> Tensor:
    return own


class Path(NamedTuple):
    """`whole`: every rank computes the loss of all queries, not only of its own. `factor(P)` multiplies the loss.

    `otherwise`: quantities that behave otherwise than `expectation` says. `reduced`: DDP averages; if not, replicas
    drift apart, and DDP says so only when the next step begins.
    """

    title: Text
    gather: Gather
    expectation: Expectation
    otherwise: dict[str, Expectation]
    whole: bool = False
    factor: Callable[[int], float] = lambda size: 1.0
    collectives: int = 3
    reduced: bool = True


PATHS: dict[str, Path] = {
    "gather_with_grad": Path(
        {"zh": "可微 gather，反向按拥有者求和", "en": "differentiable gather, backward sums at the owner"},
        with_gradient,
        "agrees",
        {},
    ),
    "library_gather_with_grad": Path(
        {"zh": "同上，用框架自带的可微 gather", "en": "the same with the framework's own differentiable gather"},
        by_the_library,
        "agrees",
        {},
    ),
    "remote_detached": Path(
        {"zh": "切断远端梯度", "en": "remote documents detached"},
        remote_detached,
        "differs",
        {"loss": "agrees", "queries": "agrees", "wq": "agrees"},
        collectives=2,
    ),
    "own_slice": Path(
        {
            "zh": "gather 的反向只取自己那一片，不相加",
            "en": "a gather whose backward keeps its own slice only",
        },
        own_slice,
        "differs",
        {"loss": "agrees", "queries": "agrees", "wq": "agrees"},
        collectives=2,
    ),
    "single_pair": Path(
        {"zh": "只用本卡候选（一对样本，没有负例）", "en": "local candidates only (one pair, no negatives)"},
        own_only,
        "differs",
        {},
        collectives=1,
    ),
    "every_slice_detached": Path(
        {"zh": "普通 all_gather：连自己那份也没有梯度", "en": "plain all_gather: its own slice has no gradient either"},
        detached,
        "differs",
        {"loss": "agrees", "queries": "agrees"},
        collectives=1,
        reduced=False,
    ),
    "whole_loss_gather_with_grad": Path(
        {"zh": "每卡算完整 loss，可微 gather", "en": "the whole loss on every rank, differentiable gather"},
        with_gradient,
        "agrees",
        {},
        whole=True,
        collectives=5,
    ),
    "whole_loss_remote_detached": Path(
        {
            "zh": "每卡算完整 loss，切断远端：小了 P 倍",
            "en": "the whole loss on every rank, remote detached: P too small",
        },
        remote_detached,
        "differs",
        {"loss": "agrees"},
        whole=True,
    ),
    "whole_loss_remote_detached_times_p": Path(
        {"zh": "同上再乘 P 补偿", "en": "the same, multiplied by P to compensate"},
        remote_detached,
        "agrees",
        {"loss": "differs"},
        whole=True,
        factor=float,
    ),
    "gather_with_grad_divided_by_p": Path(
        {"zh": "可微 gather，又多除一次 P", "en": "differentiable gather, divided by P once more"},
        with_gradient,
        "differs",
        {},
        factor=lambda size: 1.0 / size,
    ),
}


# ---- run --------------------------------------------------------------------------------------------------------


class Measured(NamedTuple):
    """One rank's side: the loss it backpropagated and gradients before and after DDP (None: there was none)."""

    loss: Tensor
    query: Tensor
    document: Tensor | None
    before: dict[str, Tensor]
    after: dict[str, Tensor]
    updated: dict[str, Tensor]
    collectives: int
    next_forward: str


def measure(group: Group, fixture: Fixture, path: Path) -> Measured:
    """One update by one path on this rank."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    a, b = torch.tensor(fixture.a[rank : rank + 1]), torch.tensor(fixture.b[rank : rank + 1])
    encoders = Encoders(a.shape[1]).to(a.device)
    replica = DistributedDataParallel(encoders, process_group=group)
    before: dict[str, Tensor] = {}
    for name, parameter in encoders.named_parameters():  # a tensor hook sees the local gradient, before DDP averages
        record = partial(_record, before, name)
        parameter.register_hook(record)  # type: ignore[no-untyped-call]
    count = collectives(group)
    query, document = replica(a, b)
    query.retain_grad()
    document.retain_grad()
    candidates = path.gather(document, group)
    queries = path.gather(query, group) if path.whole else query
    own_column = 0 if path.gather is own_only else rank
    labels = torch.arange(size) if path.whole else torch.tensor([own_column])
    loss = path.factor(size) * cross_entropy(queries @ candidates.T / fixture.temperature, labels)
    torch.autograd.backward(loss)
    count = collectives(group) - count
    after = {name: p.grad.clone() for name, p in encoders.named_parameters() if p.grad is not None}
    torch.optim.SGD(encoders.parameters(), LEARNING_RATE).step()
    updated = {name: parameter.detach().clone() for name, parameter in encoders.named_parameters()}
    return Measured(
        loss.detach(), query.grad, document.grad, before, after, updated, count, _again(replica, a, b)
    )  # fmt: skip


def _record(gradients: dict[str, Tensor], name: str, gradient: Tensor) -> None:
    gradients[name] = gradient.clone()


def _again(replica: nn.Module, a: Tensor, b: Tensor) -> str:
    """DDP notices a parameter that no rank used only when the next step begins: what it says then."""
    try:
        replica(a, b)
    except RuntimeError as error:
        return str(error).partition(".")[0]
    return ""


def reference(fixture: Fixture) -> Measured:
    """One process, all pairs: the mean loss over all queries."""
    a, b = torch.tensor(fixture.a), torch.tensor(fixture.b)
    encoders = Encoders(a.shape[1]).to(a.device)
    query, document = encoders(a, b)
    query.retain_grad()
    document.retain_grad()
    loss = cross_entropy(query @ document.T / fixture.temperature, torch.arange(len(a)))
    torch.autograd.backward(loss)
    gradients = {name: p.grad.clone() for name, p in encoders.named_parameters() if p.grad is not None}
    updated = {name: p.detach() - LEARNING_RATE * gradients[name] for name, p in encoders.named_parameters()}
    return Measured(loss.detach(), query.grad, document.grad, gradients, gradients, updated, 0, "")


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


# ---- compare ----------------------------------------------------------------------------------------------------


def compare(case: str, name: str, path: Path, ranks: list[Measured], wanted: Measured) -> Row:
    """A path's row: every rank's gradients against the reference, the replicas against each other."""
    size = len(ranks)
    nothing = torch.zeros_like(ranks[0].query)
    loss = torch.stack([rank.loss for rank in ranks]).mean()
    queries = torch.cat([rank.query for rank in ranks]) / size
    documents = torch.cat([nothing if rank.document is None else rank.document for rank in ranks]) / size
    zeros = {key: torch.zeros_like(gradient) for key, gradient in wanted.after.items()}
    after = [zeros | rank.after for rank in ranks]  # a parameter without gradient moves as one with gradient 0
    differences = {
        "loss": difference(loss, wanted.loss),
        "queries": difference(queries, wanted.query),
        "documents": difference(documents, cast(Tensor, wanted.document)),
        "wq": difference_over({str(r): each["wq"] for r, each in enumerate(after)}, _each(size, wanted.after["wq"])),
        "wd": difference_over({str(r): each["wd"] for r, each in enumerate(after)}, _each(size, wanted.after["wd"])),
        "weights": max(difference_over(rank.updated, wanted.updated) or 0.0 for rank in ranks),
    }
    agree = all(
        torch.equal(rank.updated[key], updated) for rank in ranks for key, updated in ranks[0].updated.items()
    )  # fmt: skip
    noticed = ranks[0].next_forward
    return row(
        case,
        name,
        path.title,
        path.expectation,
        differences,
        expected=path.otherwise,
        also=(agree, not noticed, ranks[0].collectives) == (path.reduced, path.reduced, path.collectives),
        values={
            "loss": plain(loss),
            "wq_gradient": plain(after[0]["wq"]) if agree else None,
            "wd_gradient": plain(after[0]["wd"]) if agree else None,
            "wq": plain(ranks[0].updated["wq"]) if agree else None,
            "wd": plain(ranks[0].updated["wd"]) if agree else None,
            "query_gradients": plain(queries),
            "document_gradients": plain(documents),
            "replicas_agree": agree,
            "collectives": ranks[0].collectives,
            "next_forward": noticed or None,
            "ranks": [of_rank(rank) for rank in ranks],
        },
    )


def of_rank(rank: Measured) -> dict[str, Json]:
    """Parameter gradients of one rank before and after DDP; null where there was none."""
    values: dict[str, Json] = {"loss": plain(rank.loss)}
    for when, gradients in (("before", rank.before), ("after", rank.after)):
        for name in ("wq", "wd"):
            values[f"{name}_{when}"] = plain(gradients[name]) if name in gradients else None
    return values


def _each(size: int, tensor: Tensor) -> dict[str, Tensor]:
    return {str(rank): tensor for rank in range(size)}


# ---- controls: could a row have passed for the wrong reason? ----------------------------------------------------


def controls(rows: list[Row], known: dict[str, Fixture]) -> list[Control]:
    """The reference moves every weight; on the asymmetric fixtures a cut gradient is no multiple of the right one."""
    gradients = {(each["case"], each["path"]): each["values"]["wd_gradient"] for each in rows}
    found = []
    for case in known:
        right = torch.tensor(cast(list[float], gradients[case, "gather_with_grad"]))
        ratios = torch.tensor(cast(list[float], gradients[case, "remote_detached"])) / right
        moves: Text = {
            "zh": f"{case}：参考梯度的每一维都不为零",
            "en": f"{case}: no element of the reference gradient is 0",
        }
        smallest = float(right.abs().min())
        found.append(control(f"{case}_moves", moves, smallest > DIFFERS, smallest=smallest))
        if case != "page":
            direction: Text = {
                "zh": f"{case}：切断后的 w_d 梯度不是正确梯度的倍数",
                "en": f"{case}: the cut gradient of w_d is no multiple of the right one",
            }
            spread = float(ratios.max() - ratios.min())
            found.append(control(f"{case}_direction", direction, spread > DIFFERS, ratios=plain(ratios)))
    return found
