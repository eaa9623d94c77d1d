"""How many collectives this process has issued."""

from typing import Any

import torch.distributed as dist


def issued() -> int:
    """In all groups so far: a number that only ever grows; 0 before there is a process group."""
    if not dist.is_initialized():
        return 0
    groups: list[Any] = list(dist.distributed_c10d._world.pg_map)
    return sum(int(group._get_sequence_number_for_group()) for group in groups)
