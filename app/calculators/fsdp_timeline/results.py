"""What is answered of a step: what a rank holds at every moment, and every policy's peak and traffic."""

from typing import Literal

from samestep.app.calculators.fsdp_timeline.inputs import PolicyName
from samestep.app.contract import models

Phase = Literal["start", "forward", "backward", "optimizer"]


Event = Literal[
    "start",
    "gather",
    "copy_out",
    "prefetch",
    "compute",
    "reshard",
    "reduce",
    "reduced",
    "release",
    "step",
    "zero_grad",
]


class Moment(models.Result):
    """What a rank holds after one event, in bytes by kind; `group` is 0 for the root, else the layer from 1."""

    phase: Phase
    event: Event
    group: int | None
    sharded: int
    optimizer: int
    gathered: int
    gather_buffers: int
    full_gradients: int
    reduce_buffers: int
    sharded_gradients: int
    total: int


class Traffic(models.Result):
    """One kind of collective in one phase: how many, the bytes of their full buffers, and the bytes that a rank
    sends."""

    count: int
    buffer_bytes: int
    sent_per_rank: int


class Summary(models.Result):
    """One policy: the peak, when it comes, and the step's traffic."""

    peak_bytes: int
    peak_gib: float
    peak_phase: Phase
    peak_event: Event
    peak_group: int | None
    forward_gathers: Traffic
    backward_gathers: Traffic
    reduce_scatters: Traffic
    sent_per_rank: int
    sent_per_rank_gib: float


class Result(models.Result):
    """The chosen policy's moments, and all policies side by side.

    `schemes` has `reshard` (true), `keep` (false) and, where a number of ranks is chosen, `group`. `replicated` is
    what a rank would hold without sharding: parameters, gradients, optimizer states in full (and no buffers), and
    what it would send for one ring all-reduce of the gradients.
    """

    total_parameters: int
    layer_parameters: list[int]
    shard_elements: int
    padding_elements: int
    start_bytes: int
    start_gib: float
    replicated_bytes: int
    replicated_gib: float
    replicated_sent_per_rank: int
    peak_share_of_replicated: float
    peak_moment: int
    moments: list[Moment]
    schemes: dict[PolicyName, Summary]

    def tables(self) -> list[models.Table]:
        """The moments, then one row a policy."""
        moments = [tuple(value for _, value in moment) for moment in self.moments]
        peaks = ("peak_bytes", "peak_phase", "peak_event", "peak_group", "sent_per_rank")
        counts = ("forward_gathers", "backward_gathers", "reduce_scatters")
        rows = [
            (name, *(getattr(summary, peak) for peak in peaks), *(getattr(summary, count).count for count in counts))
            for name, summary in self.schemes.items()
        ]
        return [
            models.Table(header=tuple(Moment.model_fields), rows=moments),
            models.Table(header=("policy", *peaks, *counts), rows=rows),
        ]


class View(Result):
    """What the panel shows: the chosen policy; `shard_ranks` is its number of ranks, null for true and false.

    `assumed` names what a whole model's size was completed with. `implausible_width` is how wide a dense decoder layer
    of the largest layer's size would be, null where some model is that wide.
    """

    selected: PolicyName
    current: Summary
    shard_ranks: int | None
    assumed: tuple[Literal["equal_layers"], ...] = ()
    implausible_width: int | None = None
