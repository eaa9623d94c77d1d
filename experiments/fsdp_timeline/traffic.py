"""What a process communicates: which collectives, and the bytes that it sends."""

from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

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


def counted(counts: Any) -> list[int]:
    """Raises RuntimeError for a collective that nobody expects."""
    calls = {str(call).split(".")[1]: count for call, count in counts.get_comm_counts().items()}
    if unknown := calls.keys() - set(COLLECTIVES):
        raise RuntimeError(f"unexpected collectives: {', '.join(sorted(unknown))}")
    return [calls.get(name, 0) for name in COLLECTIVES]
