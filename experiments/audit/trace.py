"""What one rank did in one run of the reader's step: the numbers are on disk, the rest is small."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from samestep.experiments.audit.vectors import Vectors

KINDS = ("gradient", "clipped_gradient", "parameters", "optimizer_state", "buffers", "initial")
"""Files of a trace. `gradient`: before the clip; `clipped_gradient`: as the optimizer sees it."""


@dataclass(frozen=True)
class Limit:
    """Something met in the run that makes its numbers depend on more than the samples, such as `dropout`."""

    kind: str
    where: str


@dataclass
class Trace:
    """One rank's record. `vectors` is filled from disk by `load`.

    losses         value of every root that was differentiated (unscaled), in order
    norms          by clip_grad_norm_ or ctx.note("norm"), those after the last backward
    events         backward, clip, note, unscale, step, zero_grad, collective …, in order
    consumed       for each field of data(): digest of a row → how often an outermost forward got it
    calls          samples of each backward, by the rows that its forwards got; None if some row is none of data()'s
    leftover       greatest gradient that was there before the window's first backward
    """

    rank: int
    folder: Path
    events: list[str] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    consumed: dict[str, Counter[str]] = field(default_factory=dict)
    calls: list[list[int] | None] = field(default_factory=list)
    leftover: float = 0.0
    limits: list[Limit] = field(default_factory=list)
    collectives: int = 0
    none_gradients: list[str] = field(default_factory=list)
    hyperparameters: list[dict[str, str]] = field(default_factory=list)
    loss_scale: float | None = None
    forwards: Counter[str] = field(default_factory=Counter)
    names: list[str] = field(default_factory=list)
    vectors: Mapping[str, Vectors] = field(default_factory=dict)

    @property
    def steps(self) -> int:
        """How often an optimizer stepped."""
        return self.events.count("step")

    def load(self) -> "Trace":
        """Open the files that there are."""
        found = {kind: self.folder / f"{kind}.f64" for kind in KINDS}
        self.vectors = {kind: Vectors.read(path) for kind, path in found.items() if path.exists()}
        return self

    @property
    def gradient(self) -> Vectors:
        """Before the clip."""
        return self.vectors["gradient"]

    @property
    def clipped_gradient(self) -> Vectors:
        """As the optimizer sees it."""
        return self.vectors["clipped_gradient"]

    @property
    def parameters(self) -> Vectors:
        """After the step."""
        return self.vectors["parameters"]

    @property
    def optimizer_state(self) -> Vectors:
        """After the step: moments and step counts, `parameter.name`."""
        return self.vectors["optimizer_state"]
