"""What an adapter is: a module that drives one framework and says what the update did with every token.

`experiments/conformance/frameworks/NAME.py` has

    SETTINGS: tuple[Setting, ...]
    def run(setting: str, scenario: Scenario, rank: int, world_size: int) -> Measurement | None
    def unavailable(setting: str) -> str | None          # optional: why a setting cannot be measured on this machine
    def prepare() -> None                                # optional: what takes long, once per machine; within `start`

`run` is called in each of two processes that were started as torchrun would start them. Both ranks answer with what
they see of the whole update, and must see the same; a rank that cannot see it answers None, but not rank 0.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from samestep.app.evidence.bags import Text
from samestep.experiments.conformance.scenarios import Kind, Scenario

Cells = tuple[tuple[float, ...], ...] | tuple[tuple[tuple[float, ...], ...], ...]
Expected = str | Cells | Mapping[str, float | None]
"""What a setting does in a scenario: the name of a verdict, such as `global_token_mean`, `microbatch_equal*1/K`,
`dropped` (see `rules` and `verdicts`); for what has no name, the coefficient of a token in each cell [r][k], or in each
sequence [r][k][s]; or the factor of every group of a contrastive measurement, None where the gradient has another
direction."""


@dataclass(frozen=True)
class Setting:
    """One way to use the framework. It is measured in the scenarios that `expected` names.

    `about` says what it is and, where the framework claims something, what. `labels`: what a reader must know of how it
    was run ("stubbed constructor"). `tolerance`: how far coefficients may be from exact fractions, as absolute values:
    1e-10 for float64 throughout, 1e-6 where the framework computes in float32. `releases`: expectations that replace
    `expected` for other versions of the framework than the pinned one. `planted`: in a control, the name of the factor
    that was put in on purpose.
    """

    id: str
    title: Text
    about: Text
    expected: Mapping[str, Expected]
    labels: tuple[str, ...] = ()
    tolerance: float = 1e-10
    releases: Mapping[str, Mapping[str, Expected]] = field(default_factory=dict)
    planted: str | None = None


@dataclass(frozen=True)
class Coefficients:
    """`tokens[r][k][i]`: what the gradient of token i of cell (r, k) was multiplied by in the window's update.

    `residual`: relative length of the part of the update that no re-weighting of token gradients explains.
    `later`: the same for the update after this window, where one was made; tokens in it have leaked.
    `positions`: how many a sequence has with its padding, or at most, where a loss may divide by that.
    """

    kind: ClassVar[Kind] = Kind.COEFFICIENTS
    tokens: list[list[list[float]]]
    residual: float
    later: list[list[list[float]]] | None = None
    positions: int | None = None


@dataclass(frozen=True)
class StateChange:
    """What a window without labels changed: largest absolute change of parameters and AdamW's moments, steps counted.

    `parameters_before`: the change that the real window before it made, for comparison. `loss`: as the framework
    reports it, None where it reports none.
    """

    kind: ClassVar[Kind] = Kind.STATE
    parameters: float
    moments: float
    steps: int
    parameters_before: float
    loss: float | None = None


@dataclass(frozen=True)
class Clipping:
    """`reported[r]`: the norm that rank r was told; `true`: of the whole gradient before clipping, from one process.

    `updated`: the norm of what was applied (update ÷ learning rate), with `max_norm` < `true`. `residual`: relative
    length of the part of the applied gradient that is not along the unclipped one; 0 when all was scaled alike.
    """

    kind: ClassVar[Kind] = Kind.CLIPPING
    reported: list[float | None]
    true: float
    max_norm: float
    updated: float
    residual: float


@dataclass(frozen=True)
class Proportion:
    """A gradient by another one: the best factor, and the relative length of what the factor does not explain."""

    factor: float
    residual: float


@dataclass(frozen=True)
class Contrastive:
    """Measured gradient ÷ gradient of the loss over the full batch, for each group of parameters.

    Groups: `query`, `document`, `temperature`, `bias`, or `encoder` where one encoder embeds both sides.
    """

    kind: ClassVar[Kind] = Kind.CONTRASTIVE
    groups: Mapping[str, Proportion]


@dataclass(frozen=True)
class Sharded(Contrastive):
    """The same for a model whose parts are on several ranks: measured gradient ÷ gradient of one process.

    Groups: of parameters, by name.
    """

    kind: ClassVar[Kind] = Kind.SHARDED


@dataclass(frozen=True)
class Counters:
    """What a counter says after a run, beside the parameter updates that were made in it.

    `counter`: whose it is, `scheduler` or `adam`. `rates`: the learning rate of each update, where that is what counts.
    """

    kind: ClassVar[Kind] = Kind.COUNTERS
    counter: str
    updates: int
    count: int
    rates: list[float] = field(default_factory=list)


Measurement = Coefficients | StateChange | Clipping | Contrastive | Counters


class Adapter(Protocol):
    """The shape of an adapter module."""

    SETTINGS: tuple[Setting, ...]

    def run(self, setting: str, scenario: Scenario, rank: int, world_size: int) -> Measurement | None: ...


def process_group() -> None:
    """Join the Gloo group of the two processes, once; for frameworks that do not do so themselves."""
    import torch.distributed as dist

    if not dist.is_initialized():
        dist.init_process_group("gloo", rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]))
