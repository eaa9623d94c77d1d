"""SameStep: is it still the same update? `from samestep import audit` is the public door.

This folder lays the checkout out as it is installed: one name, everything else inside it by links.
"""

from importlib import import_module
from typing import Any

_DOORS = {"audit": "samestep.experiments.audit", "watch": "samestep.experiments.watch"}


def __getattr__(name: str) -> Any:
    """A public door, opened when it is asked for: the wiki never imports torch."""
    if name not in _DOORS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_DOORS[name]), name)
