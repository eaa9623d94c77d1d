"""What does a process really hold, byte for byte, at every moment of an FSDP2 step, and what does it communicate?

    python -m experiments run fsdp_timeline

Set-up. A model of one-dimensional layers and a head that belongs to the root, cut by `fully_shard`, AdamW, real Gloo
processes: two with sizes that P divides, more with sizes that it does not. The second step is the one that counts.
After each of FSDP2's own methods (torch 2.13) the storages of all groups are added up by kind; CommDebugMode counts
the collectives, and the tensors handed to them tell the bytes.

Reference. What the wiki's calculator `fsdp_timeline` says of the same settings, every moment and kind of it: integers,
so right is a difference of 0 bytes. Optimizer states are not padded: a rank with a shorter shard holds that much less.

What is compared. Bytes at rest, at the optimizer's step and at the peak, all moments, collectives, bytes sent, with
the calculator, and with expectations that are wrong for most settings and right for some: other policies, another
dtype, no prefetching, everything in full as under DDP (which one case runs), a P-th of that at all moments.
"""

import csv
import pathlib
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, NamedTuple, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp._fully_shard import _fsdp_collectives, _fsdp_param_group
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

from samestep.app.calculators.fsdp_timeline import STATES, Inputs, compute
from samestep.app.evidence.bags import Control, Expectation, Json, Result, Row, Text
from samestep.app.mathematics.element_size import BYTES
from samestep.experiments.measured import environment
from samestep.experiments.ranks.world import World
from samestep.experiments.results import control, result, row

QUESTION: Text = {
    "zh": "FSDP2 的一步里，每个进程每一刻持有多少字节，一共通信多少？",
    "en": "How many bytes does a process hold at every moment of an FSDP2 step, and how much does it communicate?",
}
PROCESSES = 4
SCOPE: Text = {
    "zh": "CPU、Gloo、torch 2.13 的 eager 模式，几千个参数；数的是存储的大小，分片为 float32，"
    "计算为 float32 或 bfloat16；发出的字节由交给集合通信的张量按环形算法推算。"
    "不含激活值、临时拷贝、缓存分配器与时间，不涉及 CUDA/NCCL。",
    "en": "CPU, Gloo, torch 2.13 in eager mode, a few thousand parameters; sizes of storages are counted, with float32 "
    "shards computed in float32 or bfloat16; bytes sent are reckoned from the tensors handed to the collectives, by "
    "the ring. Says nothing of activations, temporary copies, caching allocators or time, nor of CUDA/NCCL.",
}
Body = dict[str, Any]
Group = Any
"""torch's FSDPParamGroup: what is gathered and reduced as one."""


# ---- set-up -----------------------------------------------------------------------------------------------------


class Case(NamedTuple):
    """`body`: the calculator's inputs, by which the model is built and cut. `ddp`: replicate it instead."""

    name: str
    title: Text
    body: Body
    ddp: bool = False

    @property
    def ranks(self) -> int:
        return cast(int, self.body["ranks"])

    @property
    def even(self) -> bool:
        return all(size % self.ranks == 0 for size in sizes(self.body))


BASE: Body = {
    "sharded_dtype": "float32",
    "param_dtype": "float32",
    "reduce_dtype": "float32",
    "reshard_after_forward": True,
    "prefetch": "backward",
    "optimizer": "adamw",
}
# Nearly equal, so that the peak lies where the chapter has it; unequal, so that no two expectations tie by chance.
EVEN: Body = BASE | {"layers": 4, "parameters": [2000, 2040, 2080, 2120], "root_parameters": 500}
UNEVEN: Body = BASE | {"layers": 4, "parameters": [1001, 37, 4003, 2], "root_parameters": 501}


def sizes(body: Body) -> list[int]:
    return [*body["parameters"], body["root_parameters"]]


def cases(ranks: int) -> list[Case]:
    """On two ranks one change at a time; on more the policies, with padding and bfloat16."""

    def case(name: str, zh: str, en: str, body: Body, ddp: bool = False) -> Case:
        title: Text = {"zh": f"P = {ranks}，{zh}", "en": f"P = {ranks}, {en}"}
        return Case(f"p{ranks}_{name}", title, body | {"ranks": ranks}, ddp)

    low, keep = {"param_dtype": "bfloat16"}, {"reshard_after_forward": False}
    if ranks == 2:
        off, both = {"prefetch": "off"}, {"prefetch": "both"}
        return [
            case("reshard", "float32，前向后释放", "float32, freed after forward", EVEN),
            case("keep", "float32，前向后保留", "float32, kept after forward", EVEN | keep),
            case("no_prefetch", "float32，不预取", "float32, nothing prefetched", EVEN | off),
            case("both", "float32，前向也预取", "float32, prefetched in forward too", EVEN | both),
            case("bfloat16", "bfloat16 计算", "computed in bfloat16", EVEN | low),
            case(
                "bfloat16_reduced", "bfloat16 计算并规约", "computed and reduced in bfloat16",
                EVEN | low | {"reduce_dtype": "bfloat16"},
            ),
            case("ddp", "float32，DDP 而非 FSDP2", "float32, DDP instead of FSDP2", EVEN, ddp=True),
        ]  # fmt: skip
    many = [
        case("reshard", "不整除，前向后释放", "padded, freed after forward", UNEVEN | low),
        case("keep", "不整除，前向后保留", "padded, kept after forward", UNEVEN | low | keep),
    ]
    groups = [count for count in range(2, ranks) if ranks % count == 0]
    for count in groups[:1]:
        body = UNEVEN | low | {"reshard_after_forward": count}
        many.append(case("group", f"不整除，每 {count} 个一组保留", f"padded, kept in groups of {count}", body))
    return many


class Path(NamedTuple):
    """An expectation: the case's settings with a `change`, or none of FSDP's at all.

    `untouched`: what comes out right all the same, wherever the rest is wrong.
    """

    title: Text
    change: Body | None
    untouched: tuple[str, ...] = ()


PATHS: dict[str, Path] = {
    "calculator": Path({"zh": "计算器，设置与运行相同", "en": "the calculator, with the settings of the run"}, {}),
    "kept": Path(
        {"zh": "当作前向后保留各层", "en": "as if the layers were kept after forward"},
        {"reshard_after_forward": False},
        ("at_rest", "at_update"),
    ),
    "resharded": Path(
        {"zh": "当作前向后释放各层", "en": "as if the layers were freed after forward"},
        {"reshard_after_forward": True},
        ("at_rest", "at_update"),
    ),
    "float32": Path(
        {"zh": "当作用 float32 计算", "en": "as if computed in float32"},
        {"param_dtype": "float32"},
        ("at_rest", "at_update", "collectives"),
    ),
    "no_prefetch": Path(
        {"zh": "当作不预取", "en": "as if nothing were prefetched"},
        {"prefetch": "off"},
        ("at_rest", "at_update", "collectives", "sent"),
    ),
    "replicated": Path(
        {"zh": "当作 DDP：每个进程一整份", "en": "as under DDP: everything in full on every process"}, None
    ),
    "share": Path({"zh": "当作每一刻都只有整份的 1/P", "en": "as if it were a P-th of that at all moments"}, None),
    "fsdp": Path({"zh": "当作 FSDP2：前向后释放各层", "en": "as under FSDP2, with the layers freed after forward"}, {}),
}
FOR_DDP = ("replicated", "fsdp")
FOR_FSDP = tuple(name for name in PATHS if name != "fsdp")


def stated(case: Case, name: str) -> tuple[Expectation, dict[str, Expectation]]:
    """What a row must do, and which of its quantities do otherwise; from the settings alone, before anything ran."""
    path, body = PATHS[name], case.body
    kept = body["reshard_after_forward"] is False
    right = path.change is not None and body | path.change == body
    if name == "no_prefetch" and kept:
        right = True  # nothing is gathered in backward
    if case.ddp:
        right = name == "replicated"
    if right:
        return "agrees", {}
    same = set(path.untouched)
    if name == "resharded" and not kept:
        same.add("collectives")  # a group gathers as often, from fewer
    if name == "replicated" and kept and case.even and body["param_dtype"] == "float32":
        same.add("sent")  # an all-reduce is a reduce-scatter and an all-gather
    if name == "share" and case.even:
        same |= {"at_rest", "at_update"}
    return "differs", dict.fromkeys(same, "agrees")


class Layer(nn.Module):
    """Scales its input by the sum of its parameters; its activation is one number."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((size,), 1 / size))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight.sum()


class Model(nn.Module):
    """Layers, and a head that belongs to the root."""

    def __init__(self, layers: Iterable[int], head: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(size) for size in layers)
        self.head = nn.Parameter(torch.full((head,), 1 / head)) if head else None

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x if self.head is None else x * self.head.sum()


DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "adamw": lambda parameters: torch.optim.AdamW(parameters, foreach=False),
    "sgd_momentum": lambda parameters: torch.optim.SGD(parameters, momentum=0.9, foreach=False),
    "sgd": lambda parameters: torch.optim.SGD(parameters, foreach=False),
}


def sharded(body: Body, mesh: DeviceMesh) -> Any:
    """The model, cut as the body says: every layer a group, the rest the root's."""
    model: Any = Model(body["parameters"], body["root_parameters"]).to(DTYPES[body["sharded_dtype"]])
    policy = MixedPrecisionPolicy(DTYPES[body["param_dtype"]], DTYPES[body["reduce_dtype"]])
    layers = list(model.layers)
    for layer in layers:
        fully_shard(layer, mesh=mesh, reshard_after_forward=body["reshard_after_forward"], mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    if body["prefetch"] == "off":
        for module in [*layers, model]:
            module.set_modules_to_backward_prefetch([module])
    if body["prefetch"] == "both":
        for layer, following in pairwise(layers):
            layer.set_modules_to_forward_prefetch([following])
    return model


# ---- measure: storages ------------------------------------------------------------------------------------------

KINDS = (
    "sharded",
    "optimizer",
    "gathered",
    "gather_buffers",
    "full_gradients",
    "reduce_buffers",
    "sharded_gradients",
)
Key = tuple[str, str, int | None]


class Moment(NamedTuple):
    """What a rank holds after an event, in bytes by kind; `group` is 0 for the root, else the layer from 1."""

    phase: str
    event: str
    group: int | None
    held: dict[str, int]

    @property
    def key(self) -> Key:
        return self.phase, self.event, self.group

    @property
    def total(self) -> int:
        return sum(self.held.values())


def size_of(tensor: Tensor | None) -> int:
    """Bytes of a tensor's whole storage, of a DTensor's local one."""
    if tensor is None:
        return 0
    local = tensor._local_tensor if isinstance(tensor, DTensor) else tensor
    return local.untyped_storage().nbytes()


def size_of_storages(tensors: Iterable[Tensor | None]) -> int:
    """Views of one storage count once."""
    local = [each._local_tensor if isinstance(each, DTensor) else each for each in tensors if each is not None]
    return sum({each.untyped_storage()._cdata: each.untyped_storage().nbytes() for each in local}.values())


def states_of(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [value for state in optimizer.state.values() for name, value in state.items() if name != "step"]


class Recorder:
    """Adds up the storages of all groups, by kind, whenever FSDP2 has done something."""

    def __init__(self, model: Any, optimizer: torch.optim.Optimizer) -> None:
        self.layers: list[Group] = [layer._get_fsdp_state()._fsdp_param_group for layer in model.layers]
        self.root: Group | None = model._get_fsdp_state()._fsdp_param_group
        self.groups = [*self.layers, *([self.root] if self.root else [])]
        self.optimizer = optimizer
        self.moments: list[Moment] = []
        self.phase = "start"
        self._gradients: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self._incoming: Tensor | None = None

    def note(self, event: str, group: Group | None = None) -> None:
        index = None if group is None else 0 if group is self.root else self.layers.index(group) + 1
        self.moments.append(Moment(self.phase, event, index, self.held()))

    def held(self) -> dict[str, int]:
        context = self.groups[0].comm_ctx
        params = [param for group in self.groups for param in group.fsdp_params]
        for param in params:  # FSDP2 takes a gradient off its parameter and keeps it until it is in the buffer
            full = getattr(param, "_unsharded_param", None)
            if full is not None and full.grad is not None:
                storage = full.grad.untyped_storage()
                self._gradients[storage._cdata] = storage
        gathers = [group._all_gather_result for group in self.groups]
        last = getattr(context, "all_gather_state", None)
        gathers += [last.all_gather_result] if last else []
        return {
            "sharded": sum(size_of(param._sharded_param_data) for param in params),
            "optimizer": sum(map(size_of, states_of(self.optimizer))),
            "gathered": sum(map(self._gathered, params)),
            "gather_buffers": sum(size_of(gather.all_gather_output) for gather in gathers if gather is not None),
            "full_gradients": sum(storage.nbytes() for storage in list(self._gradients.values())),
            "reduce_buffers": sum(size_of(state.reduce_scatter_input) for state in context.reduce_scatter_states)
            + size_of(self._incoming),
            "sharded_gradients": size_of_storages(param.sharded_param.grad for param in params),
        }

    @staticmethod
    def _gathered(param: Any) -> int:
        kept = getattr(param, "_sharded_post_forward_param_data", None)
        return sum(map(size_of, getattr(param, "all_gather_outputs", []))) + size_of(kept)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """FSDP2's own methods, each followed by a note."""
        group_class = _fsdp_param_group.FSDPParamGroup
        places: list[tuple[Any, str, Callable[..., Any]]] = [
            (group_class, "unshard", self._unshard),
            (group_class, "reshard", self._reshard),
            (group_class, "pre_backward", self._pre_backward),
            (group_class, "post_backward", self._post_backward),
            (_fsdp_param_group, "foreach_all_gather_copy_out", self._copy_out),
            (_fsdp_collectives, "foreach_reduce_scatter_copy_in", self._copy_in),
        ]
        originals = [getattr(owner, name) for owner, name, _ in places]
        for (owner, name, wrapper), original in zip(places, originals, strict=True):
            setattr(owner, name, wrapper(original))
        try:
            yield
        finally:
            for (owner, name, _), original in zip(places, originals, strict=True):
                setattr(owner, name, original)

    def _unshard(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def unshard(group: Group, *arguments: Any) -> None:
            before = group._all_gather_result
            original(group, *arguments)
            if before is None and group._all_gather_result is not None:
                self.note("gather", group)

        return unshard

    def _copy_out(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def copy_out(gather: Any, params: list[Any], *arguments: Any) -> None:
            original(gather, params, *arguments)
            self.note("copy_out", next(group for group in self.groups if group.fsdp_params is params))

        return copy_out

    def _reshard(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def reshard(group: Group) -> None:
            if group.is_unsharded and self.phase == "forward":
                self.note("compute", group)
            before = group._sharded_state
            original(group)
            if group._sharded_state is not before:
                self.note("reshard", group)

        return reshard

    def _pre_backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def pre_backward(group: Group, *arguments: Any) -> None:
            if self.root is not None and group is self.layers[-1]:
                self.note("compute", self.root)  # the head's gradient is there
            original(group, *arguments)

        return pre_backward

    def _post_backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def post_backward(group: Group, *arguments: Any) -> None:
            if group is not self.root:
                self.note("compute", group)
            original(group, *arguments)
            self.note("reduced", group)

        return post_backward

    def _copy_in(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def copy_in(gradients: list[Tensor], buffer: Tensor, ranks: int) -> None:
            self._incoming = buffer  # not yet among FSDP2's own states
            self.note("reduce", next(group for group in self.groups if self._reducing(group)))
            original(gradients, buffer, ranks)
            self._incoming = None

        return copy_in

    @staticmethod
    def _reducing(group: Group) -> bool:
        """Whether the backward of this group is over, but its sharded gradients are not there yet."""
        empty = all(param.sharded_param.grad is None for param in group.fsdp_params)
        return empty and bool(group._training_state.name == "POST_BACKWARD")


# ---- measure: traffic -------------------------------------------------------------------------------------------

COLLECTIVES = ("_allgather_base_", "_reduce_scatter_base_", "allreduce_")


class Wire(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Bytes that this rank sends, from the tensors handed to the collectives.

    Of an all-gather and of a reduce-scatter (by the ring) the full buffer but for a part as large as its own; of an
    all-reduce both.
    """

    def __init__(self, ranks: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ranks = ranks
        self.sent: list[int] = []

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if any(issubclass(each, DTensor) for each in types):
            return NotImplemented  # look at what the DTensor does with its local tensors
        if function in (torch.ops.c10d._allgather_base_.default, torch.ops.c10d._reduce_scatter_base_.default):
            self.sent.append(abs(args[0].nbytes - args[1].nbytes))
        elif function is torch.ops.c10d.allreduce_.default:
            self.sent.append(2 * sum(each.nbytes for each in args[0]) * (self.ranks - 1) // self.ranks)
        return function(*args, **(kwargs or {}))


class Measured(NamedTuple):
    """One step of one process. `collectives`: CommDebugMode's counts, in the order of `COLLECTIVES`.

    `sent`: the bytes of each collective; `moved`: the largest change of a parameter.
    """

    moments: list[Moment]
    collectives: list[int]
    sent: list[int]
    moved: float


def counted(counts: Any) -> list[int]:
    """Raises RuntimeError for a collective that nobody expects."""
    calls = {str(call).split(".")[1]: count for call, count in counts.get_comm_counts().items()}
    if unknown := calls.keys() - set(COLLECTIVES):
        raise RuntimeError(f"unexpected collectives: {', '.join(sorted(unknown))}")
    return [calls.get(name, 0) for name in COLLECTIVES]


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


# ---- run --------------------------------------------------------------------------------------------------------


def measure(world: World, case: Case) -> Measured | None:
    """None on a rank that the case does not use."""
    group = world.first(case.ranks)
    if group is None:
        stand_by(world, case)
        return None
    if case.ddp:
        return observe_ddp(case.body, group)
    return observe(case.body, DeviceMesh.from_group(group, world.device.type))


def stand_by(world: World, case: Case) -> None:
    """Making a group takes all ranks of the world, and `fully_shard` makes its own for a policy that is a number."""
    policy = case.body["reshard_after_forward"]
    if not isinstance(policy, bool):
        for _ in case.body["parameters"]:
            DeviceMesh(world.device.type, torch.arange(case.ranks).view(-1, policy))


def run(world: World) -> Result | None:
    """P = 2 and 4 as far as the world is large enough, and its own size if that is another."""
    processes = world.processes(PROCESSES)
    known = [case for size in sorted({2, 4, processes}) if size <= processes for case in cases(size)]
    if processes < 2:
        raise ValueError("fsdp_timeline needs at least two processes")
    mine: dict[str, Measured | None] = {}
    for case in known:
        world.step(f"fsdp_timeline: {case.title['en']}")
        mine[case.name] = measure(world, case)
    everybody = world.gather(mine)
    if world.rank:
        return None
    measured = {case.name: [cast(Measured, rank[case.name]) for rank in everybody[: case.ranks]] for case in known}
    write(world.folder / __name__.rpartition(".")[2] / "timeline.csv", measured)
    rows = [compare(case, path, measured[case.name]) for case in known for path in (FOR_DDP if case.ddp else FOR_FSDP)]
    bodies: dict[str, Json] = {case.name: cast(Json, case.body) for case in known}
    return result(
        __name__,
        processes,
        question=QUESTION,
        scope=SCOPE,
        setup={"cases": bodies, "kinds": list(KINDS), "collectives": list(COLLECTIVES)},
        cases={case.name: case.title for case in known},
        paths={name: path.title for name, path in PATHS.items()},
        rows=rows,
        controls=controls(known, measured, rows),
        environment=environment() | {"dtype": "float32, bfloat16"},  # of what is measured: the default plays no part
    )


def write(place: pathlib.Path, measured: Mapping[str, Sequence[Measured]]) -> None:
    """Every moment of every rank, in bytes."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.open("w", encoding="utf-8", newline="") as stream:
        lines = csv.writer(stream, lineterminator="\n")
        lines.writerow(["case", "rank", "moment", "phase", "event", "group", *KINDS, "total"])
        for name, ranks in measured.items():
            for rank, each in enumerate(ranks):
                for number, moment in enumerate(each.moments):
                    lines.writerow([name, rank, number, *moment.key, *moment.held.values(), moment.total])


# ---- compare ----------------------------------------------------------------------------------------------------


class Account(NamedTuple):
    """A rank's step, measured or expected: bytes between two steps, while the optimizer steps, and at most.

    None: an expectation says nothing of it.
    """

    at_rest: float
    at_update: float
    peak: float
    moments: list[Moment] | None
    collectives: list[int] | None
    sent: float | None


def account(moments: list[Moment], collectives: list[int], sent: int) -> Account:
    update = next(moment for moment in moments if moment.event == "step")
    peak = max(moment.total for moment in moments)
    return Account(moments[0].total, update.total, peak, moments, collectives, sent)


def shorter(body: Body, rank: int) -> int:
    """Elements by which the shards of a rank fall short of those of rank 0."""
    short = 0
    for elements in sizes(body):
        shard = -(-elements // body["ranks"])
        short += shard - min(shard, max(0, elements - rank * shard))
    return short


def expected(case: Case, name: str, rank: int) -> Account:
    """What an expectation says of a rank, in the calculator's numbers."""
    body = case.body | (PATHS[name].change or {})
    said = compute(Inputs(**body))
    if PATHS[name].change is None:
        gradients = said.total_parameters * BYTES[body["sharded_dtype"]]
        rest, full = said.replicated_bytes - gradients, said.replicated_bytes
        if name == "share":
            return Account(rest / case.ranks, full / case.ranks, full / case.ranks, None, None, None)
        return Account(rest, full, full, None, [0, 0, 1], said.replicated_sent_per_rank)
    less = 0 if case.ddp else shorter(body, rank) * STATES[body["optimizer"]] * BYTES["float32"]
    moments = []
    for moment in said.moments:
        held = {kind: cast(int, getattr(moment, kind)) for kind in KINDS}
        event = "gather" if moment.event == "prefetch" else moment.event  # from outside they look alike
        held["optimizer"] -= less
        moments.append(Moment(moment.phase, event, moment.group, held))
    policy = body["reshard_after_forward"]
    summary = said.schemes["group" if not isinstance(policy, bool) else "reshard" if policy else "keep"]
    gathers = summary.forward_gathers.count + summary.backward_gathers.count
    return account(moments, [gathers, summary.reduce_scatters.count, 0], summary.sent_per_rank)


def apart(one: Sequence[Moment], other: Sequence[Moment]) -> int:
    """Largest difference of one kind at one moment; a moment that one of them does not have is 0 bytes there."""
    first, second = ({moment.key: moment.held for moment in each} for each in (one, other))
    nothing = dict.fromkeys(KINDS, 0)
    return max(
        abs(first.get(key, nothing)[kind] - second.get(key, nothing)[kind])
        for key in first.keys() | second.keys()
        for kind in KINDS
    )


def gaps(got: Account, wanted: Account) -> dict[str, float]:
    """Difference by quantity, as far as the expectation says anything."""
    found: dict[str, float] = {
        name: abs(getattr(got, name) - getattr(wanted, name)) for name in ("at_rest", "at_update", "peak")
    }
    if wanted.moments is not None:
        found["moments"] = apart(cast(list[Moment], got.moments), wanted.moments)
    if wanted.collectives is not None:
        pairs = zip(cast(list[int], got.collectives), wanted.collectives, strict=True)
        found["collectives"] = max(abs(one - other) for one, other in pairs)
    if wanted.sent is not None:
        found["sent"] = abs(cast(float, got.sent) - wanted.sent)
    return found


def compare(case: Case, name: str, ranks: Sequence[Measured]) -> Row:
    """Every rank against what is expected of it; the largest difference counts, and right moments come in order."""
    got = [account(rank.moments, rank.collectives, sum(rank.sent)) for rank in ranks]
    wanted = [expected(case, name, rank) for rank in range(case.ranks)]
    each = [gaps(one, other) for one, other in zip(got, wanted, strict=True)]
    expectation, exceptions = stated(case, name)
    return row(
        case.name,
        name,
        PATHS[name].title,
        expectation,
        {quantity: float(max(one[quantity] for one in each)) for quantity in each[0]},
        expected=exceptions,
        also=expectation != "agrees" or all(map(_in_order, got, wanted)),
        values={
            "peak": got[0].peak,
            "expected_peak": wanted[0].peak,
            "peak_group": max(ranks[0].moments, key=lambda moment: moment.total).group,
            "collectives": cast(Json, got[0].collectives),
            "expected_collectives": cast(Json, wanted[0].collectives),
            "sent": got[0].sent,
            "expected_sent": wanted[0].sent,
        },
    )


def _in_order(got: Account, wanted: Account) -> bool:
    keys = [[moment.key for moment in each.moments or []] for each in (got, wanted)]
    return wanted.moments is None or keys[0] == keys[1]


# ---- controls ---------------------------------------------------------------------------------------------------

TITLES: dict[str, Text] = {
    "held": {
        "zh": "每个 FSDP2 进程在某一刻都持有过每一类存储",
        "en": "every FSDP2 process held storages of every kind at some moment",
    },
    "counted": {
        "zh": "每个进程都有集合通信，次数与看到的张量相符，每次都发出字节",
        "en": "every process communicated, as often as tensors were seen, and sent bytes each time",
    },
    "returned": {
        "zh": "FSDP2 的一步结束时回到开始时的字节数，其间确实更多",
        "en": "a step of FSDP2 ends with the bytes it began with, and held more in between",
    },
    "step": {
        "zh": "被记录的一步确实更新了每个进程的参数",
        "en": "the recorded step updated every process's parameters",
    },
    "both_ways": {
        "zh": "每种预期都至少有一处必须一致：没有一种是处处都错的",
        "en": "every expectation must agree somewhere: none is wrong everywhere",
    },
}


def controls(known: Sequence[Case], measured: Mapping[str, Sequence[Measured]], rows: Sequence[Row]) -> list[Control]:
    """Nothing that was compared is empty, and no expectation is wrong whatever happens."""
    everyone = [rank for ranks in measured.values() for rank in ranks]
    cut = [rank for case in known if not case.ddp for rank in measured[case.name]]
    held = {kind: min(max(moment.held[kind] for moment in rank.moments) for rank in cut) for kind in KINDS}
    fewest = min(sum(rank.collectives) for rank in everyone)
    seen = all(len(rank.sent) == sum(rank.collectives) and all(rank.sent) for rank in everyone)
    back = all(rank.moments[0].held == rank.moments[-1].held for rank in cut)
    growth = min(max(moment.total for moment in rank.moments) - rank.moments[0].total for rank in cut)
    moved = sum(rank.moved > 0 for rank in everyone)
    right = {
        name: sum("agrees" in each["expected"].values() for each in rows if each["path"] == name) for name in FOR_FSDP
    }
    return [
        control("held", TITLES["held"], min(held.values()) > 0, **held),
        control("counted", TITLES["counted"], fewest > 0 and seen, fewest=fewest),
        control("returned", TITLES["returned"], back and growth > 0, smallest_growth=growth),
        control("step", TITLES["step"], moved == len(everyone), steps=moved),
        control("both_ways", TITLES["both_ways"], min(right.values()) > 0, **right),
    ]
