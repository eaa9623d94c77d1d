"""What FSDP2 really holds, moment by moment: the sizes of its storages on Gloo processes, and how much it communicates.

Run by `test_fsdp_timeline.py` through `experiments.processes` on 4 processes. `options["cases"]` are bodies of the
calculator, on 2 ranks (two independent pairs) or 4. FSDP2's own methods are wrapped, so that after each of them the
storages of all groups are added up; the second training step is the one that is recorded.
"""

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, cast

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp._fully_shard import _fsdp_collectives, _fsdp_param_group
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.debug import CommDebugMode

from app.evidence import Result
from experiments.world import World

Case = dict[str, Any]
Group = Any
"""torch's FSDPParamGroup."""


class Layer(nn.Module):
    """Scales its input; its activation is one number."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((size,), 1 / size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight.sum()


class Model(nn.Module):
    """Layers, and a head that belongs to the root."""

    def __init__(self, sizes: Iterable[int], head: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(size) for size in sizes)
        self.head = nn.Parameter(torch.full((head,), 1 / head)) if head else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x if self.head is None else x * self.head.sum()


def size_of(tensor: torch.Tensor | None) -> int:
    if tensor is None:
        return 0
    local = tensor._local_tensor if isinstance(tensor, DTensor) else tensor
    return local.untyped_storage().nbytes()


class Recorder:
    """Adds up the storages of all groups, by kind, whenever something has happened."""

    def __init__(self, layers: list[Group], root: Group | None, optimizer: torch.optim.Optimizer) -> None:
        self.layers, self.root = layers, root
        self.groups = [*layers, *([root] if root else [])]
        self.optimizer = optimizer
        self.moments: list[dict[str, Any]] = []
        self.phase = "start"
        self._gradients: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self._incoming: torch.Tensor | None = None

    def index(self, group: Group) -> int:
        return 0 if group is self.root else self.layers.index(group) + 1

    def note(self, event: str, group: Group | None = None) -> None:
        index = None if group is None else self.index(group)
        self.moments.append({"phase": self.phase, "event": event, "group": index, **self.held()})

    @property
    def context(self) -> Any:
        return self.groups[0].comm_ctx

    def held(self) -> dict[str, int]:
        params = [param for group in self.groups for param in group.fsdp_params]
        for param in params:
            full = getattr(param, "_unsharded_param", None)
            if full is not None and full.grad is not None:
                storage = full.grad.untyped_storage()
                self._gradients[storage._cdata] = storage
        results = [group._all_gather_result for group in self.groups]
        state = getattr(self.context, "all_gather_state", None)
        results += [state.all_gather_result] if state else []
        buffers = [state.reduce_scatter_input for state in self.context.reduce_scatter_states]
        buffers += [] if self._incoming is None else [self._incoming]
        reduced = {
            g._local_tensor.untyped_storage()._cdata: g for g in (p.sharded_param.grad for p in params) if g is not None
        }
        states = [value for state in self.optimizer.state.values() for name, value in state.items() if name != "step"]
        return {
            "sharded": sum(size_of(param._sharded_param_data) for param in params),
            "optimizer": sum(map(size_of, states)),
            "gathered": sum(self.gathered(param) for param in params),
            "gather_buffers": sum(size_of(result.all_gather_output) for result in results if result is not None),
            "full_gradients": sum(storage.nbytes() for storage in list(self._gradients.values())),
            "reduce_buffers": sum(map(size_of, buffers)),
            "sharded_gradients": sum(map(size_of, reduced.values())),
        }

    @staticmethod
    def gathered(param: Any) -> int:
        kept = getattr(param, "_sharded_post_forward_param_data", None)
        return sum(map(size_of, getattr(param, "all_gather_outputs", []))) + size_of(kept)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """FSDP2's own methods, followed by a note."""
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
        def copy_out(result: Any, params: list[Any], *arguments: Any) -> None:
            original(result, params, *arguments)
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
            self._incoming = None
            self.note("reduced", group)

        return post_backward

    def _copy_in(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def copy_in(gradients: list[torch.Tensor], buffer: torch.Tensor, ranks: int) -> None:
            self._incoming = buffer
            owner = next(group for group in self.groups if self.reducing(group))
            self.note("reduce", owner)
            original(gradients, buffer, ranks)
            self._incoming = None

        return copy_in

    @staticmethod
    def reducing(group: Group) -> bool:
        """Whether the backward of this group is over, but its sharded gradients are not there yet."""
        empty = all(param.sharded_param.grad is None for param in group.fsdp_params)
        return empty and bool(group._training_state.name == "POST_BACKWARD")


DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "adamw": lambda parameters: torch.optim.AdamW(parameters, foreach=False),
    "sgd_momentum": lambda parameters: torch.optim.SGD(parameters, momentum=0.9, foreach=False),
    "sgd": lambda parameters: torch.optim.SGD(parameters, foreach=False),
}


def observe(case: Case, mesh: DeviceMesh) -> dict[str, Any]:
    """Two steps of a model cut as the case says; the second is recorded."""
    model: Any = Model(case["parameters"], case["root_parameters"]).to(DTYPES[case["sharded_dtype"]])
    policy = MixedPrecisionPolicy(DTYPES[case["param_dtype"]], DTYPES[case["reduce_dtype"]])
    layers = list(model.layers)
    for layer in layers:
        fully_shard(layer, mesh=mesh, reshard_after_forward=case["reshard_after_forward"], mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    if case["prefetch"] == "off":
        for module in [*layers, model]:
            module.set_modules_to_backward_prefetch([module])
    if case["prefetch"] == "both":
        for layer, following in pairwise(layers):
            layer.set_modules_to_forward_prefetch([following])
    optimizer = OPTIMIZERS[case["optimizer"]](model.parameters())
    groups = [layer._get_fsdp_state()._fsdp_param_group for layer in layers]
    recorder = Recorder(groups, model._get_fsdp_state()._fsdp_param_group, optimizer)
    x = torch.ones((), dtype=DTYPES[case["sharded_dtype"]], requires_grad=True)
    model(x).backward()
    optimizer.step()
    optimizer.zero_grad()
    counts = cast(Any, CommDebugMode)()
    with counts, recorder.listening():
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
    calls = {str(call).split(".")[1]: count for call, count in counts.get_comm_counts().items()}
    return {"moments": recorder.moments, "calls": calls}


def run(world: World) -> Result | None:
    pairs = init_device_mesh("cpu", (2, 2), mesh_dim_names=("copy", "shard"))["shard"]
    meshes = {2: pairs, 4: init_device_mesh("cpu", (4,))}
    answers = []
    for number, case in enumerate(cast(list[Case], world.options["cases"])):
        world.step(f"case {number}")
        answers.append(world.gather(observe(case, meshes[case["ranks"]])))
    return cast(Result, {"name": "gloo_fsdp", "answers": answers}) if world.rank == 0 else None
