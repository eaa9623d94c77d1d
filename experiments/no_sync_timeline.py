"""Which backward of an accumulation window communicates, and what is in `.grad` after each?

    python -m experiments run no_sync_timeline

Set-up. Two Gloo processes, a model of a few vectors whose loss is x times the sum of all elements, so that the gradient
of every element is x; three microsteps with other x on every process. DDP with one bucket, with several, and looking
for unused parameters, and FSDP2 with two groups; each runs the window in eight ways, which differ in the order of
forwards and backwards and in where gradient synchronisation is switched off.

Reference. g* = the mean over the processes of their sums of x, in exact numbers.

What is compared. `.grad` at the end of the window against g*: four ways are right under DDP, six under FSDP2; the rest
must be seen to miss it. After every backward `.grad` of both processes, and how many collectives reduced gradients in
it, against the wiki's calculator of the same name: no difference is allowed.
"""

import contextlib
import math
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.nn.parallel import DistributedDataParallel

from samestep.app.calculators.no_sync_timeline import Inputs, SchemeResult, compute as calculate
from samestep.app.calculators.no_sync_timeline.programs import Event, ProgramName, named
from samestep.app.evidence.bags import DIFFERS, Control, Json, Result, Row, Text
from samestep.experiments.measured import environment
from samestep.experiments.ranks.world import World
from samestep.experiments.results import control, result, row

QUESTION: Text = {
    "zh": "累积窗口里哪一次反向在通信，每一次之后 .grad 里是什么？",
    "en": "Which backward of an accumulation window communicates, and what is in .grad after each?",
}
PROCESSES = 2
SCOPE: Text = {
    "zh": "CPU、Gloo、torch 2.13、float64，几个向量组成的模型，三个微步。不涉及 CUDA/NCCL、"
    "torch.compile、static_graph 与 FSDP1；没用到的参数只在 find_unused_parameters 打开时运行。",
    "en": "CPU, Gloo, torch 2.13, float64, a model of a few vectors, three microsteps. Says nothing of CUDA/NCCL, "
    "torch.compile, static_graph or FSDP1; unused parameters are run with find_unused_parameters only.",
}
GRADIENTS = ((1.0, 2.0, 4.0), (3.0, 6.0, 12.0))
"""x of every process, microstep by microstep."""
REFERENCE = sum(map(sum, GRADIENTS)) / len(GRADIENTS)
REDUCING = ("allreduce_", "_reduce_scatter_base_")

# ---- set-up -----------------------------------------------------------------------------------------------------


class Case(NamedTuple):
    """How the model is wrapped; `body` is what the calculator is asked beside the gradients."""

    title: Text
    body: dict[str, Json]
    right: frozenset[ProgramName]


BY_FORWARD = frozenset[ProgramName]({"last_synchronised", "every_backward", "backward_inside", "one_backward"})
BY_BACKWARD = BY_FORWARD | frozenset[ProgramName]({"forward_inside", "forwards_first"})
CASES: dict[str, Case] = {
    "ddp": Case({"zh": "DDP，一个桶", "en": "DDP, one bucket"}, {"wrapper": "ddp", "parameters": [2, 2]}, BY_FORWARD),
    "ddp_buckets": Case(
        {"zh": "DDP，三个桶", "en": "DDP, three buckets"},
        {"wrapper": "ddp", "parameters": [100, 100, 100], "bucket_cap_mb": 0.0007},
        BY_FORWARD,
    ),
    "ddp_find_unused": Case(
        {"zh": "DDP，find_unused_parameters", "en": "DDP, find_unused_parameters"},
        {"wrapper": "ddp", "parameters": [100, 100, 100], "bucket_cap_mb": 0.001, "find_unused_parameters": True},
        BY_FORWARD,
    ),
    "fsdp2": Case(
        {"zh": "FSDP2，两组", "en": "FSDP2, two groups"}, {"wrapper": "fsdp2", "parameters": [4, 6]}, BY_BACKWARD
    ),
}
TITLES: dict[ProgramName, Text] = {
    "last_synchronised": {"zh": "只有最后一个微步同步", "en": "only the last microstep synchronises"},
    "every_backward": {"zh": "每次反向都同步", "en": "every backward synchronises"},
    "backward_inside": {"zh": "前向在 no_sync 外，反向在内", "en": "forward outside no_sync, backward inside"},
    "forward_inside": {
        "zh": "前向在 no_sync 内，最后的反向在外",
        "en": "forwards inside no_sync, the last backward outside",
    },
    "never": {"zh": "全部在 no_sync 内", "en": "everything inside no_sync"},
    "last_left_out": {"zh": "只有最后一个微步在 no_sync 内", "en": "only the last microstep inside no_sync"},
    "forwards_first": {"zh": "先做完全部前向，再逐个反向", "en": "all forwards, then backward by backward"},
    "one_backward": {"zh": "先做完全部前向，损失相加后一次反向", "en": "all forwards, then one backward of the sum"},
}


class Vector(nn.Module):
    """A parameter whose every element has the gradient x."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight.sum() * x


class Model(nn.Module):
    def __init__(self, sizes: list[int]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(map(Vector, sizes))

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([part(x) for part in self.parts]).sum()


class Switched(NamedTuple):
    """A wrapped model, and how its gradient synchronisation is switched."""

    model: nn.Module

    def synchronising(self, sync: bool) -> AbstractContextManager[None]:
        if isinstance(self.model, DistributedDataParallel):
            return contextlib.nullcontext() if sync else self.model.no_sync()
        return self._set(sync)

    @contextlib.contextmanager
    def _set(self, sync: bool) -> Iterator[None]:
        cast(FSDPModule, self.model).set_requires_gradient_sync(sync)
        yield

    def grad(self) -> float | None:
        """`.grad`, whose elements are all the same; RuntimeError where they are not."""
        held = [each.grad for each in self.model.parameters()]
        if any(each is None for each in held):
            return None
        full = [each.full_tensor() if isinstance(each, DTensor) else each for each in cast(list[Tensor], held)]
        values = set(torch.cat([each.flatten() for each in full]).tolist())
        if len(values) > 1:
            raise RuntimeError(f"the gradient is not the same everywhere: {values}")
        return float(values.pop())


def wrapped(case: Case, group: dist.ProcessGroup, device: torch.device) -> Switched:
    body = cast(dict[str, Any], case.body)
    model = Model(body["parameters"])
    if body["wrapper"] == "ddp":
        options = {name: body[name] for name in ("bucket_cap_mb", "find_unused_parameters") if name in body}
        replica = DistributedDataParallel(model, process_group=group, **options)
        for _ in range(2):  # the second forward makes the buckets that stay
            torch.autograd.backward(replica(torch.ones(())))
        model.zero_grad()
        return Switched(replica)
    mesh = DeviceMesh.from_group(group, device.type)
    for part in model.parts:
        fully_shard(part, mesh=mesh)
    return Switched(cast(nn.Module, fully_shard(model, mesh=mesh)))


# ---- run --------------------------------------------------------------------------------------------------------


class Backward(NamedTuple):
    """`.grad` of one process after a backward, and how many collectives reduced gradients in it."""

    grad: float | None
    collectives: int


def measure(case: Case, program: ProgramName, group: dist.ProcessGroup, device: torch.device) -> list[Backward]:
    """One window, in one way."""
    switched = wrapped(case, group, device)
    own = GRADIENTS[dist.get_rank(group)]
    losses: dict[int, Tensor] = {}
    found: list[Backward] = []
    for event in named(len(own))[program].events():
        if event.kind == "forward":
            (k,) = event.microsteps
            with switched.synchronising(event.sync):
                losses[k] = switched.model(torch.tensor(own[k]))
        else:
            found.append(_backward(switched, event, losses))
    return found


def _backward(switched: Switched, event: Event, losses: dict[int, Tensor]) -> Backward:
    counts = cast(Any, CommDebugMode)()
    with switched.synchronising(event.sync), counts:
        torch.autograd.backward(torch.stack([losses[k] for k in event.microsteps]).sum())
    calls = {str(call).split(".")[1]: count for call, count in counts.get_comm_counts().items()}
    return Backward(switched.grad(), sum(calls.get(name, 0) for name in REDUCING))


def run(world: World) -> Result | None:
    """Every way under every wrapper; two ranks, whatever the size of the world."""
    if world.size < len(GRADIENTS):
        raise ValueError("no_sync_timeline needs two processes")
    group = world.first(len(GRADIENTS))
    mine: dict[tuple[str, ProgramName], list[Backward]] = {}
    for name, case in CASES.items() if group else ():
        world.step(f"no_sync_timeline: {case.title['en']}")
        for program in TITLES:
            mine[name, program] = measure(case, program, cast(dist.ProcessGroup, group), world.device)
    everybody = world.gather(mine)
    if world.rank:
        return None
    rows = [
        compare(name, case, program, [everybody[rank][name, program] for rank in range(len(GRADIENTS))])
        for name, case in CASES.items()
        for program in TITLES
    ]
    setup: dict[str, Json] = {
        "gradients": [list(own) for own in GRADIENTS],
        "reference": REFERENCE,
        "cases": {name: case.body for name, case in CASES.items()},
    }
    return result(
        __name__,
        PROCESSES,
        question=QUESTION,
        scope=SCOPE,
        setup=setup,
        cases={name: case.title for name, case in CASES.items()},
        paths={str(program): title for program, title in TITLES.items()},
        rows=rows,
        controls=controls(rows),
        environment=environment(),
        command=f"python -m experiments run {__name__.rpartition('.')[2]}",
    )


# ---- compare ----------------------------------------------------------------------------------------------------


def compare(name: str, case: Case, program: ProgramName, ranks: list[list[Backward]]) -> Row:
    """`.grad` at the end of the window against g*, a None being as far from it as a 0; the way there as calculated."""
    final = [backwards[-1].grad for backwards in ranks]
    said = calculated(case)[program]
    return row(
        name,
        program,
        TITLES[program],
        "agrees" if program in case.right else "differs",
        {"gradient": max(abs((held or 0.0) - REFERENCE) for held in final), "calculator": _gap(said, ranks)},
        expected={"calculator": "agrees"},
        values={
            "grad": [[backwards[i].grad for backwards in ranks] for i in range(len(ranks[0]))],
            "collectives": [backward.collectives for backward in ranks[0]],
            "replicas_agree": len(set(final)) == 1,
        },
    )


def calculated(case: Case) -> dict[str, SchemeResult]:
    """What the calculator says of all programs."""
    body = {"gradients": GRADIENTS, "dtype": "float64", **case.body}
    return calculate(Inputs.model_validate(body)).schemes


def _gap(said: SchemeResult, ranks: list[list[Backward]]) -> float:
    """Largest difference between measured and calculated numbers; infinite where one says None and the other not."""
    events = [event for event in said.events if event.kind == "backward"]
    pairs: list[tuple[float | None, float | None]] = []
    for rank, backwards in enumerate(ranks):
        for event, backward in zip(events, backwards, strict=True):
            pairs += [(event.grad[rank], backward.grad), (event.collectives, backward.collectives)]
    return max(abs(a - b) if a is not None and b is not None else 0.0 if a is b else math.inf for a, b in pairs)


# ---- controls ---------------------------------------------------------------------------------------------------


def controls(rows: list[Row]) -> list[Control]:
    """The same program is right under one wrapper and wrong under the other, and something was communicated."""
    met: dict[str, set[str]] = {}
    for each in rows:
        met.setdefault(each["path"], set()).add(each["expectation"])
    split: list[Json] = [path for path, expectations in sorted(met.items()) if len(expectations) > 1]
    calls = sum(cast(int, count) for each in rows for count in cast(list[Json], each["values"]["collectives"]))
    return [
        control(
            "wrappers_differ",
            {
                "zh": "有的写法在一种包装下正确，在另一种下错误",
                "en": "some ways are right under one wrapper and wrong under the other",
            },
            len(split) == 2,
            paths=split,
        ),
        control("communicates", {"zh": "确有通信", "en": "gradients were reduced"}, calls > 0, collectives=calls),
        control(
            "reference",
            {"zh": "参考不为零", "en": "the reference is not zero"},
            abs(REFERENCE) > DIFFERS,
            reference=REFERENCE,
        ),
    ]
