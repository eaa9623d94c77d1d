"""Which part of which copy of a tensor a rank holds: plain tensors are whole copies, DTensors are blocks of one."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from samestep.experiments.taps import sketches


@dataclass(frozen=True)
class Part:
    """The sketch of what this rank holds. Parts of the same `copy` add up to a tensor; None: a copy of its own."""

    sketch: Tensor
    copy: int | None = None


def local(tensor: Tensor) -> Tensor:
    """This rank's block of a DTensor; a plain tensor itself."""
    block: Tensor = getattr(tensor, "_local_tensor", tensor)
    return block


def part_of(tensor: Tensor) -> Part:
    """The sketch of a gradient, or of this rank's block of it. No collective is needed."""
    if not hasattr(tensor, "_local_tensor"):
        return Part(sketches.sketch(tensor))
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    sharded: Any = tensor
    mesh, placements = sharded.device_mesh, sharded.placements
    _, begins = compute_local_shape_and_global_offset(tensor.shape, mesh, placements)
    block = local(tensor)
    if block.numel() == 0:
        begins = (0,) * tensor.dim()
    copy = 0
    for axis, placement in enumerate(placements):
        if placement.is_replicate():
            copy = copy * mesh.size(axis) + mesh.get_local_rank(axis)
    return Part(sketches.sketch_of_shard(block, tuple(tensor.shape), begins), copy)
