"""Bodies of the calculator, run for real: what every rank of FSDP2 held at every moment, and what it called.

Run by `test_fsdp_timeline.py` through `experiments.ranks` on 4 processes; the measuring is the experiment's.
`options["cases"]` are the bodies, on 2 ranks (two independent pairs) or 4.
"""

from typing import Any, cast

from torch.distributed.device_mesh import init_device_mesh

from samestep.app.evidence.bags import Result
from samestep.experiments.fsdp_timeline.step import Measured, observe
from samestep.experiments.fsdp_timeline.traffic import COLLECTIVES
from samestep.experiments.ranks.world import World


def run(world: World) -> Result | None:
    pairs = init_device_mesh("cpu", (2, 2), mesh_dim_names=("copy", "shard"))["shard"]
    meshes = {2: pairs, 4: init_device_mesh("cpu", (4,))}
    answers = []
    for number, body in enumerate(cast(list[dict[str, Any]], world.options["cases"])):
        world.step(f"case {number}")
        answers.append(world.gather(as_json(observe(body, meshes[body["ranks"]]))))
    return cast(Result, {"name": "gloo_fsdp", "answers": answers}) if world.rank == 0 else None


def as_json(measured: Measured) -> dict[str, Any]:
    return {
        "moments": [
            {"phase": each.phase, "event": each.event, "group": each.group, **each.held} for each in measured.moments
        ],
        "calls": dict(zip(COLLECTIVES, measured.collectives, strict=True)),
        "sent": sum(measured.sent),
    }
