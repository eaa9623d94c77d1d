"""One step of one process, under FSDP2 or under DDP, with its storages and its traffic recorded."""

from typing import Any, NamedTuple, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.nn.parallel import DistributedDataParallel

from samestep.experiments.fsdp_timeline.cases import Body
from samestep.experiments.fsdp_timeline.model import DTYPES, OPTIMIZERS, Model, sharded
from samestep.experiments.fsdp_timeline.storages import KINDS, Moment, Recorder, size_of, size_of_storages, states_of
from samestep.experiments.fsdp_timeline.traffic import Wire, counted


class Measured(NamedTuple):
    """One step of one process. `collectives`: CommDebugMode's counts, in the order of `COLLECTIVES`.

    `sent`: the bytes of each collective; `moved`: the largest change of a parameter.
    """

    moments: list[Moment]
    collectives: list[int]
    sent: list[int]
    moved: float


def shards(model: nn.Module) -> Tensor:
    """This process's parameters, flat, as a copy."""
    local = [each._local_tensor if isinstance(each, DTensor) else each for each in model.parameters()]
    return torch.cat([each.detach().clone().flatten() for each in local])


def observe(body: Body, mesh: DeviceMesh) -> Measured:
    """Two steps under FSDP2; the second is recorded: the first makes the optimizer's states."""
    model = sharded(body, mesh)
    optimizer = OPTIMIZERS[body["optimizer"]](model.parameters())
    recorder = Recorder(model, optimizer)
    x = torch.ones((), dtype=DTYPES[body["sharded_dtype"]], requires_grad=True)
    model(x).backward()
    optimizer.step()
    optimizer.zero_grad()
    before = shards(model)
    counts, wire = cast(Any, CommDebugMode)(), Wire(mesh.size())
    with wire, counts, recorder.listening():
        recorder.note("start")
        recorder.phase = "forward"
        y = model(x)
        recorder.note("release")
        recorder.phase = "backward"
        y.backward()
        recorder.note("release")
        recorder.phase = "optimizer"
        optimizer.step()
        recorder.note("step")
        optimizer.zero_grad()
        recorder.note("zero_grad")
    return Measured(recorder.moments, counted(counts), wire.sent, float((shards(model) - before).abs().max()))


def observe_ddp(body: Body, group: dist.ProcessGroup) -> Measured:
    """The same step under DDP, whose gradients live in its bucket and, once let go of, cannot be seen there."""
    model = Model(body["parameters"], body["root_parameters"]).to(DTYPES[body["sharded_dtype"]])
    replica = DistributedDataParallel(model, process_group=group, gradient_as_bucket_view=True)
    optimizer = OPTIMIZERS[body["optimizer"]](model.parameters())
    x = torch.ones((), dtype=DTYPES[body["sharded_dtype"]])
    for _ in range(2):  # in the second one DDP broadcasts how it will fill its buckets from then on
        torch.autograd.backward(replica(x))
        optimizer.step()
        optimizer.zero_grad()
    moments: list[Moment] = []

    def note(phase: str, event: str) -> None:
        gradients = size_of_storages(parameter.grad for parameter in model.parameters())
        held = {"sharded": sum(map(size_of, model.parameters())), "optimizer": sum(map(size_of, states_of(optimizer)))}
        moments.append(Moment(phase, event, None, dict.fromkeys(KINDS, 0) | held | {"full_gradients": gradients}))

    before = shards(model)
    counts, wire = cast(Any, CommDebugMode)(), Wire(dist.get_world_size(group))
    with wire, counts:
        note("start", "start")
        y = replica(x)
        note("forward", "release")
        torch.autograd.backward(y)
        note("backward", "release")
        optimizer.step()
        note("optimizer", "step")
        optimizer.zero_grad()
        note("optimizer", "zero_grad")
    return Measured(moments, counted(counts), wire.sent, float((shards(model) - before).abs().max()))
