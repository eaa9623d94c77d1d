"""A rank of two: every training loop once unwatched and once watched; what it ends with is compared bit for bit.

RANK=0 WORLD_SIZE=2 … python scenarios.py FOLDER [LOOP …]
"""

import gc
import hashlib
import json
import random
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from training import LOOPS

from samestep.experiments.watch.session import Order, start, stop


def digest(tensors: list[torch.Tensor]) -> str:
    """Of all bytes, and of the random states after them."""
    found = hashlib.sha256(b"".join(tensor.contiguous().view(torch.uint8).numpy().tobytes() for tensor in tensors))
    found.update(torch.get_rng_state().numpy().tobytes() + repr(random.getstate()).encode())
    return found.hexdigest()


def run(made: Callable[..., Any], rank: int) -> str:
    torch.manual_seed(5)
    random.seed(5)
    return digest(made(rank))


def main() -> None:
    folder, names = Path(sys.argv[1]), sys.argv[2:] or list(LOOPS)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, found = dist.get_rank(), {}
    for name in names:
        began = time.perf_counter()
        plain = run(LOOPS[name], rank)
        gc.collect()
        gc.freeze()  # what was imported, or left by a loop before, is not this loop's, and need not be looked through
        (folder / name).mkdir(exist_ok=True)
        dist.barrier()
        session = start(Order(str(folder / name)))
        watched = run(LOOPS[name], rank)
        stop(session)
        found[name] = {"plain": plain, "watched": watched, "seconds": time.perf_counter() - began}
    (folder / f"rank{rank}.json").write_text(json.dumps(found))
    (folder / "imported.json").write_text(json.dumps([name for name in sys.modules if name.startswith("samestep.")]))
    dist.destroy_process_group()


main()
