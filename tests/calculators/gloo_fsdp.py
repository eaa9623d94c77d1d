"""Bodies of the calculator, run for real: what every rank of FSDP2 held at every moment, and what it called.

Run by `test_fsdp_timeline.py` through `experiments.ranks` on 4 processes; the measuring is the experiment's.
`options["cases"]` are the bodies, on 2 ranks (two independent pairs) or 4. `options["window"]` are gradients, a row a
rank: what hybrid sharding on two groups of two left in `.grad` after every backward of every program. `norm` is the
gradient of a norm under sequence parallelism whose parts on the two tensor parallel ranks are 256 and 1, with
parameters in bfloat16 and a `reduce_dtype` of float32.
"""

from typing import Any, cast

import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import SequenceParallel, parallelize_module

from samestep.app.calculators.no_sync_timeline.programs import ProgramName, named
from samestep.app.evidence.bags import Result
from samestep.experiments.fsdp_timeline.step import Measured, observe
from samestep.experiments.fsdp_timeline.traffic import COLLECTIVES
from samestep.experiments.no_sync_timeline import REDUCING, Model, Switched
from samestep.experiments.ranks.world import World


def run(world: World) -> Result | None:
    hybrid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("copy", "shard"))
    pairs = hybrid["shard"]
    meshes = {2: pairs, 4: init_device_mesh("cpu", (4,))}
    answers = []
    for number, body in enumerate(cast(list[dict[str, Any]], world.options["cases"])):
        world.step(f"case {number}")
        answers.append(world.gather(as_json(observe(body, meshes[body["ranks"]]))))
    window = cast(list[list[float]], world.options["window"])
    programs = {name: world.gather(in_groups(name, window[world.rank], hybrid)) for name in named(len(window[0]))}
    told = {"name": "gloo_fsdp", "answers": answers, "programs": programs, "norm": norm_gradient(hybrid)}
    return cast(Result, told) if world.rank == 0 else None


def in_groups(program: ProgramName, own: list[float], mesh: DeviceMesh) -> list[tuple[float | None, int]]:
    """`.grad` after every backward, and how many collectives reduced gradients in it; the switch is that of the
    all-reduce between the groups."""
    model = Model([4, 6])
    for part in model.parts:
        fully_shard(part, mesh=mesh)
    switched = Switched(cast(torch.nn.Module, fully_shard(model, mesh=mesh)))
    losses: dict[int, torch.Tensor] = {}
    found: list[tuple[float | None, int]] = []
    for event in named(len(own))[program].events():
        cast(FSDPModule, switched.model).set_requires_all_reduce(event.sync)
        if event.kind == "forward":
            losses[event.microsteps[0]] = switched.model(torch.tensor(own[event.microsteps[0]]))
            continue
        counts = cast(Any, CommDebugMode)()
        with counts:
            torch.autograd.backward(torch.stack([losses[k] for k in event.microsteps]).sum())
        calls = {str(call).split(".")[1]: count for call, count in counts.get_comm_counts().items()}
        found.append((switched.grad(), sum(calls.get(name, 0) for name in REDUCING)))
    return found


def norm_gradient(mesh: DeviceMesh) -> float:
    """The first element of the norm's weight gradient; the mesh's second axis is tensor parallel."""
    model = torch.nn.Sequential(torch.nn.LayerNorm(2, bias=False))
    parallelize_module(model, mesh["shard"], {"0": SequenceParallel()})
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    fully_shard(model, mesh=mesh["copy"], mp_policy=policy)
    output = model(torch.tensor([[[1.0, -1.0]]]))
    local = output.to_local() if isinstance(output, DTensor) else output
    part = 256.0 if mesh.get_local_rank("shard") == 0 else 1.0
    torch.autograd.backward(local, torch.tensor([[[part, 0.0]]], dtype=local.dtype))
    (weight,) = model.parameters()
    return float(cast(DTensor, weight.grad).full_tensor()[0])


def as_json(measured: Measured) -> dict[str, Any]:
    return {
        "moments": [
            {"phase": each.phase, "event": each.event, "group": each.group, **each.held} for each in measured.moments
        ],
        "calls": dict(zip(COLLECTIVES, measured.collectives, strict=True)),
        "sent": sum(measured.sent),
    }
