"""What one rank did in one update of the reader's: the numbers are on disk, the rest is small.

An update ends with the steps of one or several optimizers; a forward or backward after that begins the next one. So a
call of the reader's step() has one update, or several where it steps more than once.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from samestep.experiments.audit.running.vectors import Vectors

KINDS = (
    "gradient",
    "clipped_gradient",
    "computed",
    "parameters",
    "optimizer_state",
    "buffers",
    "outside",
    "notes",
    "initial",
    "stepped",
    "beside",
)
"""Files of a trace.

gradient          before the clip
clipped_gradient  as the optimizer sees it
computed          as the last backward left it, where something has changed it before the clip or the step
outside           copies of the parameters that the model does not hold, such as a moving average
initial           parameters before the update (of the reference)
stepped           as the last step left the parameters, where something has changed them since
beside            buffers and copies of the parameters before the update (of the reference)
"""
PART = "part{}"
"""Files of what one backward added to this rank's gradient, before any reduction: part0, part1, …"""
MET = "met{}"
"""Files of the parameters as a backward met them, where they were changed since the one before: met1, met2, …"""


@dataclass(frozen=True)
class Limit:
    """Something met in the run that makes its numbers depend on more than the samples, such as `dropout`."""

    kind: str
    where: str


@dataclass(frozen=True)
class Clip:
    """One call of a clip: `norm` or `value`, the limit it was given, and the norm it found."""

    kind: str
    limit: float | None
    norm: float | None = None


@dataclass(frozen=True)
class Move:
    """Parameters that were changed in place between two backwards of an update.

    factor   what all of them were multiplied by; None where it was something else
    """

    names: tuple[str, ...]
    factor: float | None


@dataclass
class Trace:
    """One rank's record of one update. `vectors` is filled from disk by `load`.

    losses        value of every root that was differentiated (unscaled), in order
    norms         by clip_grad_norm_ or ctx.note("norm"), those after the last backward
    events        backward, clip, note, unscale, step, zero_grad, collective …, in order
    consumed      for each field of data(): digest of a row → how often an outermost forward got it
    calls         samples of each backward, by the rows that its forwards got; None if some row is none of data()'s
    clips         those after the last backward; earlier_clips: those that another backward followed
    unrecognised  an outermost forward got tensors that are none of data()'s rows
    leftovers     per parameter, the greatest gradient that was there before the update's first backward
    left_behind   per parameter, the greatest gradient that is there when step() returns
    owned         parameters that an optimizer stepped
    sites         file and line of the last backward, clip, step … in the reader's folder
    settings      numbers that rule the next update: learning rates and other options of every group, a scaler's scale
    moved_inside  parameters were changed in place between two backwards of the update
    moves         how, where parameters are few enough to be kept
    met           numbers of the backwards before which they were changed, where they were kept
    complex       names of the parameters that are complex
    types         floating-point types that were handed to collectives, or came out of a backward
    stored        the coarsest type of the parameters
    repeated      ctx.note names that were noted more than once, with how often
    detached      collectives that were given a tensor with a gradient and return one without
    unwaited      collectives on a gradient that nobody waited for before the step
    pairwise      shapes of the matrices in the graph of the loss
    targets       of every backward, how many targets its losses count; None where none of them says so
    terms         the summands of every loss: `term NAME` by ctx.term, else `BACKWARD.SUMMAND OPERATION`
    """

    rank: int
    folder: Path
    events: list[str] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    consumed: dict[str, Counter[str]] = field(default_factory=dict)
    calls: list[list[int] | None] = field(default_factory=list)
    call: int = 0
    unrecognised: bool = False
    leftovers: dict[str, float] = field(default_factory=dict)
    left_behind: dict[str, float] = field(default_factory=dict)
    owned: list[str] = field(default_factory=list)
    limits: list[Limit] = field(default_factory=list)
    clips: list[Clip] = field(default_factory=list)
    earlier_clips: list[Clip] = field(default_factory=list)
    collectives: int = 0
    none_gradients: list[str] = field(default_factory=list)
    hyperparameters: list[dict[str, str]] = field(default_factory=list)
    settings: dict[str, float] = field(default_factory=dict)
    loss_scale: float | None = None
    forwards: Counter[str] = field(default_factory=Counter)
    wrapped: list[str] = field(default_factory=list)
    hooks: list[str] = field(default_factory=list)
    stored: str = ""
    moved_inside: bool = False
    moves: list[Move] = field(default_factory=list)
    met: list[int] = field(default_factory=list)
    complex: list[str] = field(default_factory=list)
    types: set[str] = field(default_factory=set)
    names: list[str] = field(default_factory=list)
    sites: dict[str, str] = field(default_factory=dict)
    repeated: dict[str, int] = field(default_factory=dict)
    detached: dict[str, str] = field(default_factory=dict)
    unwaited: dict[str, str] = field(default_factory=dict)
    pairwise: set[tuple[int, ...]] = field(default_factory=set)
    targets: list[int | None] = field(default_factory=list)
    terms: list[str] = field(default_factory=list)
    not_compared: list[str] = field(default_factory=list)
    parts: int = 0
    vectors: Mapping[str, Vectors] = field(default_factory=dict)

    @property
    def steps(self) -> int:
        """How often an optimizer stepped."""
        return self.events.count("step")

    @property
    def leftover(self) -> float:
        """The greatest gradient before the first backward, of the parameters that were stepped."""
        return max((value for name, value in self.leftovers.items() if not self.owned or name in self.owned), default=0)

    def load(self) -> "Trace":
        """Open the files that there are."""
        kinds = [*KINDS, *(PART.format(k) for k in range(self.parts)), *(MET.format(k) for k in self.met)]
        found = {kind: self.folder / f"{kind}.f64" for kind in kinds}
        vectors = {kind: Vectors.read(path) for kind, path in found.items() if path.exists()}
        if self.owned:
            stepped = ("gradient", "clipped_gradient", "computed")
            vectors |= {kind: vectors[kind].only(self.owned) for kind in stepped if kind in vectors}
        self.vectors = vectors
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


@dataclass
class Run:
    """All updates of one rank, over all calls of step(). `once`: why it was called only once; "" if it was not."""

    rank: int
    updates: list[Trace] = field(default_factory=list)
    once: str = ""

    def load(self) -> "Run":
        """Open the files of every update."""
        for update in self.updates:
            update.load()
        return self

    def of_call(self, call: int) -> list[Trace]:
        """The updates within one call of step()."""
        return [update for update in self.updates if update.call == call]

    @property
    def calls(self) -> int:
        """How often step() was called."""
        return max((update.call for update in self.updates), default=-1) + 1


def merged(updates: list[Trace]) -> Trace:
    """Several updates seen as one: what happened in all of them, and the numbers at the end of the last."""
    first, last = updates[0], updates[-1]
    consumed: dict[str, Counter[str]] = {}
    for update in updates:
        for name, counts in update.consumed.items():
            consumed.setdefault(name, Counter()).update(counts)
    begin = {"initial": first.vectors["initial"]} if "initial" in first.vectors else {}
    return replace(
        last,
        events=[event for update in updates for event in update.events],
        losses=[loss for update in updates for loss in update.losses],
        calls=[call for update in updates for call in update.calls],
        consumed=consumed,
        leftovers=first.leftovers,
        collectives=sum(update.collectives for update in updates),
        unrecognised=any(update.unrecognised for update in updates),
        vectors={**last.vectors, **begin},
    )
