"""What a process holds: the storages of all of FSDP2's groups, added up by kind after each of its own methods."""

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributed.fsdp._fully_shard import _fsdp_collectives, _fsdp_param_group
from torch.distributed.tensor import DTensor

Group = Any
"""torch's FSDPParamGroup: what is gathered and reduced as one."""

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
