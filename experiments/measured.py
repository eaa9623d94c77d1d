"""Tensors as a result holds them: how far apart they are, as plain numbers, as arrays; and where they were computed."""

import math
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from samestep.app.evidence.bags import Json
from samestep.experiments.results import number

Named = Mapping[str, Tensor]


def difference(got: Tensor, wanted: Tensor) -> float | None:
    """Largest absolute difference over all elements; None when either holds a value that is not finite."""
    largest = float((got.cpu() - wanted.cpu()).abs().max()) if got.numel() else 0.0
    return largest if math.isfinite(largest) else None


def difference_over(got: Named, wanted: Named) -> float | None:
    """`difference` over sets of tensors with the same names."""
    if got.keys() != wanted.keys():
        raise ValueError(f"different tensors: {sorted(got.keys() ^ wanted.keys())}")
    largest = [difference(got[name], wanted[name]) for name in wanted]
    return None if None in largest else max((each for each in largest if each is not None), default=0.0)


def plain(value: Tensor | float) -> Json:
    """A tensor as nested lists, a number as it is: without −0, and with non-finite numbers as strings."""
    if isinstance(value, Tensor):
        listed = value.detach().cpu().tolist()
        return [plain(each) for each in value.detach().unbind(0)] if isinstance(listed, list) else plain(float(listed))
    return number(value)


def arrays(tensors: Named) -> dict[str, NDArray[Any]]:
    return {name: np.asarray(tensor.detach().cpu().numpy()) for name, tensor in tensors.items()}


def environment() -> dict[str, Json]:
    """What the last bits of a number may depend on."""
    return {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "system": platform.system(),
        "machine": platform.machine(),
        "cpu": _cpu(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "device": torch.get_default_device().type,
        "dtype": str(torch.get_default_dtype()).removeprefix("torch."),
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
    }


def _cpu() -> str:
    information = Path("/proc/cpuinfo")
    if information.is_file():
        for line in information.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()
