"""How to audit: all options of the command, checked."""

from collections.abc import Sequence
from dataclasses import dataclass

from samestep.experiments.audit.running import plans
from samestep.experiments.audit.running.plans import Plan

TOLERANCES = {"float64": 2e-10, "float32": 2e-5, "bfloat16": 2e-2}
BACKENDS = ("gloo", "nccl")


class SettingsError(ValueError):
    """An option that cannot be."""


@dataclass(frozen=True)
class Settings:
    """`plan`: a name, or plans of one's own, whose cells then say how many ranks and microbatches there are.

    `atol`: greatest difference of two equal numbers of size 1 or less; None for what suits the type.
    `timeout`: seconds within which every step of a run has to come to its end.
    `steps`: how often step() is called in a row, where it can be called again.
    """

    processes: int = 2
    microbatches: int = 3
    plan: str | Sequence[Plan] = "ragged"
    backend: str = "gloo"
    dtype: str = "float64"
    atol: float | None = None
    timeout: float = 120.0
    steps: int = 2

    def __post_init__(self) -> None:
        if isinstance(self.plan, str) and self.plan not in plans.NAMES:
            raise SettingsError(f"there is no plan “{self.plan}”; there are {', '.join(plans.NAMES)}")
        if self.dtype not in TOLERANCES:
            raise SettingsError(f"dtype must be one of {', '.join(TOLERANCES)}, not {self.dtype}")
        if self.backend not in BACKENDS:
            raise SettingsError(f"backend must be one of {', '.join(BACKENDS)}, not {self.backend}")
        if self.processes < 1 or self.microbatches < 1:
            raise SettingsError("there must be at least 1 process and 1 microbatch")
        if self.steps < 1:
            raise SettingsError("step() has to be called at least once: --steps must be 1 or more")

    @property
    def tolerance(self) -> float:
        """`atol`, or the usual one of the type."""
        return TOLERANCES[self.dtype] if self.atol is None else self.atol

    @property
    def ranks(self) -> int:
        """How many processes there are to be."""
        return self.processes if isinstance(self.plan, str) else len(self.plan[0].cells)

    @property
    def cells(self) -> int:
        """How many microbatches every rank is to have."""
        return self.microbatches if isinstance(self.plan, str) else max(len(rank) for rank in self.plan[0].cells)

    def plans(self, samples: int) -> list[Plan]:
        """The plans for so many samples; raises plans.TooFewSamplesError."""
        if isinstance(self.plan, str):
            return plans.fitting(self.plan, samples, self.processes, self.microbatches)
        return list(self.plan)
