"""What the book says of DDP, Gloo, FSDP2 and the loss scaler, done on two ranks; `test_parallel.py` reads the answers.

Whatever holds a DistributedDataParallel object is a function that returns plain numbers (see `ranks.world`).
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.nn.parallel import DistributedDataParallel

from samestep.app.evidence.bags import Result
from samestep.experiments.ranks.world import World

Loss = Callable[[nn.Module, int], Tensor]
MakeOptimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


def run(world: World) -> Result | None:
    answers = {
        part.__name__: part(world) for part in (ddp, empty_rank, maximum, scaler, optimizers, sharded, hybrid, split)
    }
    return cast(Result, {"name": "parallel_ranks", "answers": answers}) if world.rank == 0 else None


# --- DDP


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2)).double()


def flat(net: nn.Module) -> Tensor:
    return torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in net.parameters()])


def cell_loss(net: nn.Module, rank: int, microstep: int) -> Tensor:
    seeded = torch.Generator().manual_seed(10 * rank + microstep)
    return cast(Tensor, net(torch.randn(3, 4, generator=seeded, dtype=torch.float64))).square().sum()


def ddp(world: World) -> dict[str, Any]:
    """For each way of running two microsteps: how far the replicas lie apart, and rank 0 from the reference."""
    ways = {
        "plain": plain,
        "forward_in_no_sync": forward_in_no_sync,
        "backward_in_no_sync": backward_in_no_sync,
        "module_called": module_called,
        "two_forwards": two_forwards,
        "one_backward_of_the_sum": one_backward,
    }
    reference = flat(on_one_process(world.size))
    found: dict[str, Any] = {}
    for name, way in ways.items():
        world.step(name)
        found[name] = distances(world, ddp_gradient(world, way), reference)
    own = cell_gradient(world.rank, 1)
    first = torch.stack([cell_gradient(rank, 0) for rank in range(world.size)]).mean(0)
    unreduced = (ddp_gradient(world, two_forwards) - (first + own)).abs().max()
    found["two_forwards_keep_the_second_local"] = float(unreduced)
    found["unused"] = unused(world)
    return found


def distances(world: World, gradient: Tensor, reference: Tensor) -> dict[str, float]:
    every = [torch.empty_like(gradient) for _ in range(world.size)]
    dist.all_gather(every, gradient)
    return {
        "apart": float((every[0] - every[1]).abs().max()),
        "off": float((every[0] - reference).abs().max()),
        "ratio": float(every[0] @ reference / (reference @ reference)),
    }


def on_one_process(size: int) -> nn.Module:
    net = network()
    for rank in range(size):
        for microstep in range(2):
            (cell_loss(net, rank, microstep) / size).backward()  # type: ignore[no-untyped-call]
    return net


def cell_gradient(rank: int, microstep: int) -> Tensor:
    net = network()
    cell_loss(net, rank, microstep).backward()  # type: ignore[no-untyped-call]
    return flat(net)


def ddp_gradient(world: World, way: Callable[[DistributedDataParallel, Loss], None]) -> Tensor:
    net = DistributedDataParallel(network())
    way(net, lambda module, microstep: cell_loss(module, world.rank, microstep))
    return flat(net.module).clone()


def plain(net: DistributedDataParallel, loss: Loss) -> None:
    for microstep in range(2):
        loss(net, microstep).backward()  # type: ignore[no-untyped-call]


def forward_in_no_sync(net: DistributedDataParallel, loss: Loss) -> None:
    for microstep in range(2):
        with net.no_sync():
            value = loss(net, microstep)
        value.backward()  # type: ignore[no-untyped-call]


def backward_in_no_sync(net: DistributedDataParallel, loss: Loss) -> None:
    for microstep in range(2):
        value = loss(net, microstep)
        with net.no_sync():
            value.backward()  # type: ignore[no-untyped-call]


def module_called(net: DistributedDataParallel, loss: Loss) -> None:
    for microstep in range(2):
        loss(net.module, microstep).backward()  # type: ignore[no-untyped-call]


def two_forwards(net: DistributedDataParallel, loss: Loss) -> None:
    values = [loss(net, microstep) for microstep in range(2)]
    for value in values:
        value.backward()  # type: ignore[no-untyped-call]


def one_backward(net: DistributedDataParallel, loss: Loss) -> None:
    (loss(net, 0) + loss(net, 1)).backward()  # type: ignore[no-untyped-call]


class WithUnused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = network(), nn.Linear(3, 3).double()

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.used(x))


def unused(world: World) -> dict[str, Any]:
    """A parameter that no rank uses: what the step leaves, and what the next forward says."""
    net = DistributedDataParallel(WithUnused())
    cell_loss(net, world.rank, 0).backward()  # type: ignore[no-untyped-call]
    reference = WithUnused()
    for rank in range(world.size):
        (cell_loss(reference, rank, 0) / world.size).backward()  # type: ignore[no-untyped-call]
    answer: dict[str, Any] = distances(world, flat(net.module).clone(), flat(reference))
    with refused(answer):
        cell_loss(net, world.rank, 1)
    return answer


def empty_rank(world: World) -> dict[str, Any]:
    """Rank 1 has no label: the gradient that DDP leaves of `cross_entropy`, over the token mean."""
    labels = torch.tensor([0, 1, 1]) if world.rank == 0 else torch.full((3,), -100)
    inputs = torch.linspace(-1, 1, 12).view(3, 4)
    net = DistributedDataParallel(network())
    loss = nn.functional.cross_entropy(net(inputs), labels)
    loss.backward()  # type: ignore[no-untyped-call]
    alone = network()
    nn.functional.cross_entropy(alone(inputs), torch.tensor([0, 1, 1])).backward()  # type: ignore[no-untyped-call]
    answer: dict[str, Any] = distances(world, flat(net.module).clone(), flat(alone) / 2)
    return answer | {"loss_is_nan": world.gather(bool(loss.isnan()))}


@contextlib.contextmanager
def refused(answer: dict[str, Any]) -> Iterator[None]:
    answer["refusal"] = ""
    try:
        yield
    except RuntimeError as error:
        answer["refusal"] = str(error)


def maximum(world: World) -> dict[str, list[str]]:
    """The maximum over two ranks of 1 and NaN, by which rank holds the NaN: what each rank gets, as text."""
    found = {}
    for holder in range(world.size):
        value = torch.tensor(float("nan") if world.rank == holder else 1.0)
        dist.all_reduce(value, op=dist.ReduceOp.MAX)
        got = [torch.empty(()) for _ in range(world.size)]
        dist.all_gather(got, value)
        found[f"rank {holder}"] = [str(float(each)) for each in got]
    return found


# --- FSDP2


def layers(dtype: torch.dtype = torch.float64) -> FSDPModule:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6, bias=False), nn.Linear(6, 4, bias=False)).to(dtype)
    fully_shard(model[0])
    return fully_shard(model)


def parameters(model: FSDPModule) -> list[nn.Parameter]:
    return list(cast(nn.Module, model).parameters())


def local(tensor: Tensor) -> Tensor:
    return cast(DTensor, tensor).to_local()


def backward(world: World, model: FSDPModule, scale: float = 1.0) -> None:
    dtype = parameters(model)[0].dtype
    value = cast(nn.Module, model)(torch.full((2, 4), float(world.rank + 1), dtype=dtype))
    (scale * value.square().sum()).backward()


def scaler(world: World) -> dict[str, Any]:
    """An infinity in one shard of rank 1: scale and movement on both ranks, under FSDP2 and for plain tensors."""
    found = {}
    for kind in ("fsdp2", "plain"):
        if kind == "fsdp2":
            model = layers()
            own = parameters(model)
        else:
            own = [nn.Parameter(torch.ones(3))]
        optimizer, scaling = torch.optim.SGD(own, lr=0.1), torch.amp.GradScaler("cpu", init_scale=8.0)
        scaling.scale(torch.zeros(()))
        if kind == "fsdp2":
            backward(world, model, 8.0)
        else:
            own[0].grad = torch.ones(3)
        shards = [local(p) if kind == "fsdp2" else p for p in own]
        before = [shard.detach().clone() for shard in shards]
        if world.rank == 1:
            gradient = cast(Tensor, own[0].grad)
            (local(gradient) if kind == "fsdp2" else gradient).view(-1)[0] = torch.inf
        scaling.step(optimizer)
        scaling.update()
        moved = max(float((now - then).abs().max()) for now, then in zip(shards, before, strict=True))
        found[kind] = world.gather((scaling.get_scale(), moved))
    return found


def optimizers(world: World) -> dict[str, Any]:
    """For each optimizer on FSDP2's shards: the collectives of one step, or the refusal."""
    makers: dict[str, MakeOptimizer] = {
        "SGD": lambda own: torch.optim.SGD(own, lr=0.1, momentum=0.9),
        "AdamW": lambda own: torch.optim.AdamW(own, lr=1e-3),
        "Muon": lambda own: torch.optim.Muon(own, lr=1e-2),
        "Adafactor": lambda own: torch.optim.Adafactor(own, lr=1e-2),
    }
    found = {}
    for name, make in makers.items():
        model = layers()
        backward(world, model)
        answer: dict[str, Any] = {}
        with CommDebugMode() as counted, refused(answer):  # type: ignore[no-untyped-call]
            make(parameters(model)).step()
        answer["collectives"] = sum(counted.get_comm_counts().values())
        found[name] = answer
        if not answer["refusal"]:
            found[name]["off"] = off_the_whole(world, model, make)
    return found


def off_the_whole(
    world: World, stepped: FSDPModule, make: Callable[[list[nn.Parameter]], torch.optim.Optimizer]
) -> float:
    """How far the shards' step lies from the same step of the whole model on one process."""
    torch.manual_seed(0)
    whole = nn.Sequential(nn.Linear(4, 6, bias=False), nn.Linear(6, 4, bias=False)).double()
    for rank in range(world.size):
        value = whole(torch.full((2, 4), float(rank + 1), dtype=torch.float64))
        (value.square().sum() / world.size).backward()
    make(list(whole.parameters())).step()
    parts = zip(parameters(stepped), whole.parameters(), strict=True)
    return max(float((cast(DTensor, part).full_tensor() - all_of_it).detach().abs().max()) for part, all_of_it in parts)


def sharded(world: World) -> dict[str, Any]:
    """What a write to the root, a state dict, an early optimizer and a divide factor do."""
    found: dict[str, Any] = {}
    model = layers()
    root = cast(Any, model)[1].weight
    own = local(root).detach().clone()
    cast(nn.Module, model)(torch.ones(2, 4))
    whole = cast(Any, model)[1].weight
    found["root_after_forward"] = isinstance(whole, DTensor)
    with torch.no_grad():
        whole.fill_(7.0)
    model.reshard()
    found["write_survived"] = float((local(cast(Any, model)[1].weight) - own).abs().max())
    cast(nn.Module, model)(torch.ones(2, 4))
    with CommDebugMode() as counted:  # type: ignore[no-untyped-call]
        saved = cast(nn.Module, model).state_dict()
    found["state_dict"] = [all(isinstance(part, DTensor) for part in saved.values()), counted.get_total_counts()]

    early = nn.Linear(4, 6, bias=False)
    optimizer = torch.optim.SGD(early.parameters(), lr=0.1)
    fully_shard(early)
    before = local(early.weight).detach().clone()
    early(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    found["early_optimizer_moved"] = float((local(early.weight) - before).abs().max())

    model = layers(torch.float32)
    model.set_gradient_divide_factor(1.0)
    with refused(found):
        backward(world, model)
    return found


def hybrid(world: World) -> dict[str, float]:
    """Two copies of one shard: the first gradient element by divide factor; rank r contributes 10 to the power r."""
    mesh = init_device_mesh("cpu", (world.size, 1), mesh_dim_names=("copy", "shard"))
    found = {}
    for factor in (None, 1.0, 4.0):
        model = nn.Linear(2, 2, bias=False)
        fully_shard(model, mesh=mesh)
        if factor is not None:
            cast(FSDPModule, model).set_gradient_divide_factor(factor)
        model(torch.full((1, 2), 10.0**world.rank)).sum().backward()
        found[str(factor)] = float(cast(DTensor, model.weight.grad).full_tensor()[0, 0])
    return found


class Split(nn.Module):
    """A weight that every tensor parallel rank holds whole, and of whose gradient each has a part: 256, then 1."""

    def __init__(self, tensor_parallel: DeviceMesh) -> None:
        super().__init__()
        self.weight = nn.Parameter(distribute_tensor(torch.ones(2), tensor_parallel, [Replicate()]))

    def forward(self, part: Tensor) -> Tensor:
        return cast(DTensor, self.weight).to_local(grad_placements=[Partial()]) * part


def split(world: World) -> dict[str, float]:
    """The first gradient element under FSDP2 with reductions in float32, by the type of the parameters in compute."""
    mesh = init_device_mesh("cpu", (1, world.size), mesh_dim_names=("data", "tensor"))
    found = {}
    for dtype in (torch.bfloat16, torch.float32):
        model = Split(mesh["tensor"])
        policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
        fully_shard(model, mesh=mesh["data"], mp_policy=policy)
        model(torch.full((2,), (256.0, 1.0)[world.rank])).sum().backward()
        found[str(dtype)] = float(cast(DTensor, model.weight.grad).full_tensor()[0])
    return found
