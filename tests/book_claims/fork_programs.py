"""Run programs that call `torch.multiprocessing.spawn`, one after the other: `python fork_programs.py FOLDER`.

Their processes are forked from this one, which has imported torch already; a spawned process would import it again.
Of `NAME.py` the folder gets `NAME.out`, and `NAME.err` with the traceback if it failed.
"""

import os
import sys
import traceback
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed.fsdp
import torch.multiprocessing as mp
from torch.multiprocessing.spawn import start_processes


def run(file: Path) -> None:
    code = compile(file.read_text("utf-8"), str(file), "exec")
    output = os.open(file.with_suffix(".out"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    sys.stdout.flush()
    os.dup2(output, 1)
    os.close(output)
    sys.stdout = os.fdopen(1, "w", buffering=1, encoding="utf-8", closefd=False)  # whole lines: two processes write
    names: dict[str, Any] = {"__name__": "__main__", "__file__": str(file)}
    try:
        exec(code, names)
    except Exception:  # whatever a program of the book raises is what its test wants to see
        file.with_suffix(".err").write_text(traceback.format_exc(), "utf-8")
    sys.stdout.flush()


def main() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    vars(mp)["spawn"] = partial(start_processes, start_method="fork")
    for file in sorted(Path(sys.argv[1]).glob("*.py")):
        run(file)


if __name__ == "__main__":
    main()
