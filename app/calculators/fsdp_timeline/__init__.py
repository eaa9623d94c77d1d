"""What every rank holds and sends in one step of fully sharded data parallelism, moment by moment.

Words and symbols: P `ranks`; a group i of n_i parameters is gathered and reduced as one: each layer is a group, and
what belongs to no layer (embedding, head) is the root's. Bytes per element: b_s of the sharded parameters, b_c of the
gathered ones (computation), b_r of the gradients as they are reduced, b_o of an optimizer state, of which there are q
(AdamW 2, SGD with momentum 1, SGD 0). With m_i = ceil(n_i / P), a rank's shard padded to the same size on all ranks:

    sharded            sum m_i·b_s, always                  optimizer          sum q·m_i·b_o, always
    gathered           P·m_i·b_c while group i is gathered; after the forward, kept by k ranks: (P·m_i / k)·b_c
    gather_buffers     P·m_i·b_c: the flat output of the all-gather, out of which the parameters are copied
    full_gradients     n_i·b_c from the backward of group i to the copy into its reduce buffer
    reduce_buffers     P·m_i·b_r: the flat input of the reduce-scatter, held until the next group's
    sharded_gradients  m_i·b_s from the reduce-scatter to zero_grad

The order of moments is that of FSDP2 (`fully_shard`, source of torch 2.13, eager mode), in the order in which the
program allocates; the tests compare every moment with the storages of a real run. The policy `reshard_after_forward`
is that of the layers: true (free after forward, gather again in backward), false (keep), or a number k of ranks that
divides P (keep a shard of 1/k). The root is `fully_shard(model)` with its default: kept from its forward to the end
of backward. `prefetch`: `backward` is FSDP2's default (gather the next group before computing this one's gradients),
`off` undoes it (`set_modules_to_backward_prefetch` to the module itself), `both` also gathers the next layer during
the forward (`set_modules_to_forward_prefetch`).

Traffic: an all-gather hands every rank's shard to the other P-1 ranks (k-1 ranks of a group of k), a reduce-scatter by
the ring sends P-1 of the P parts: bytes per rank as in the calculator `collectives`.

Conditions: one-dimensional padding as above (exact too for any parameters whose first dimension P divides; optimizer
states are not padded, so that rank 0 holds what is given here and a rank with a shorter shard less); the root's
gradients count from the start of the backward (exact for a head; for an embedding alone an upper bound); optimizer
states exist already (every step but the first). Not counted: activations, the step counters, temporary copies inside
one operation (the cast of a shard to b_c or of a reduced gradient to b_s, kernels' scratch, the optimizer's own),
what a caching allocator keeps on top, HSDP, offloading, gradient accumulation.
"""

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Annotated, Literal

from pydantic import Field, model_validator

from samestep.app.contract.errors import InputError
from samestep.app.contract.fields import whole_number, whole_numbers
from samestep.app.contract.forms import Form
from samestep.app.contract.limits import MAX_RANKS
from samestep.app.contract.models import (
    Inputs as InputsBase,
    Query as QueryBase,
    Result as ResultBase,
    Table,
)
from samestep.app.contract.numbers import whole
from samestep.app.mathematics.element_size import BYTES, Dtype

OptimizerName = Literal["adamw", "sgd_momentum", "sgd"]
Prefetch = Literal["off", "backward", "both"]
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
PolicyName = Literal["reshard", "keep", "group"]

MAX_LAYERS = 256
MAX_PARAMETERS = 10**13
GIB = 2**30
STATES: dict[OptimizerName, int] = {"adamw": 2, "sgd_momentum": 1, "sgd": 0}

MaybeNone = Annotated[int, whole_number(0, MAX_PARAMETERS)]
Layers = Annotated[int, whole_number(1, MAX_LAYERS)]
Ranks = Annotated[int, whole_number(2, MAX_RANKS)]
LayerSizes = Annotated[tuple[int, ...], whole_numbers(1, MAX_PARAMETERS)]


def _policy(value: object) -> bool | int:
    """`true`, `false`, or a number of ranks."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().lower() in ("true", "false"):
        return value.strip().lower() == "true"
    try:
        return whole(value)
    except InputError as error:
        en, zh = "must be true, false or a number of ranks", "应为 true、false 或一个 rank 数"
        raise InputError(en, zh, code=error.code) from None


_POLICY_SCHEMA = {"anyOf": [{"type": "boolean"}, {"enum": ["true", "false"]}, {"type": "integer", "minimum": 2}]}
Policy = Annotated[
    bool | int,
    Form("number", _policy, _POLICY_SCHEMA, lambda value: str(value).lower() if isinstance(value, bool) else value),
]


class Inputs(InputsBase):
    """A model cut into groups, and how it is sharded.

    The defaults are a decoder of 32 layers of width 4,096 (feed-forward 11,008, vocabulary 32,000, untied embedding and
    head in the root, no biases): 6,738,415,616 parameters, on 8 ranks.

    `parameters` is one number for all `layers`, or a list with one for each. `reduce_dtype` and `param_dtype` are
    MixedPrecisionPolicy's, `sharded_dtype` is the dtype of the parameters that the optimizer updates.
    """

    layers: Layers = 32
    parameters: LayerSizes = Field(default=(202_383_360,), examples=[202_383_360, [1000, 2000]])
    root_parameters: MaybeNone = 262_148_096
    ranks: Ranks = 8
    reshard_after_forward: Policy = True
    prefetch: Prefetch = "backward"
    sharded_dtype: Dtype = "float32"
    param_dtype: Dtype = "bfloat16"
    reduce_dtype: Dtype = "float32"
    optimizer: OptimizerName = "adamw"
    optimizer_dtype: Dtype = "float32"

    @model_validator(mode="after")
    def _fits(self) -> "Inputs":
        if len(self.parameters) not in (1, self.layers):
            en = f"has {len(self.parameters)} values: give one, or one for each of the {self.layers} layers"
            zh = f"有 {len(self.parameters)} 个值：应为一个，或 {self.layers} 层各一个"
            raise InputError(en, zh, field="parameters", code="shape_mismatch")
        k = self.reshard_after_forward
        if not isinstance(k, bool) and (not 1 < k < self.ranks or self.ranks % k):
            en = f"is {k}: a number of ranks must divide {self.ranks}, and be neither 1 nor {self.ranks}"
            zh = f"为 {k}：rank 数应整除 {self.ranks}，且不为 1 或 {self.ranks}"
            raise InputError(en, zh, field="reshard_after_forward", code="not_divisible")
        return self


class Query(Inputs, QueryBase):
    """The panel has the fields of the body, `reshard_after_forward` as a text."""

    reshard_after_forward: Policy = Field(default="true", validate_default=True)


class Moment(ResultBase):
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


class Traffic(ResultBase):
    """One kind of collective in one phase: how many, the bytes of their full buffers, and the bytes that a rank
    sends."""

    count: int
    buffer_bytes: int
    sent_per_rank: int


class Summary(ResultBase):
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


class Result(ResultBase):
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

    def tables(self) -> list[Table]:
        """The moments, then one row a policy."""
        moments = [tuple(value for _, value in moment) for moment in self.moments]
        peaks = ("peak_bytes", "peak_phase", "peak_event", "peak_group", "sent_per_rank")
        counts = ("forward_gathers", "backward_gathers", "reduce_scatters")
        rows = [
            (name, *(getattr(summary, peak) for peak in peaks), *(getattr(summary, count).count for count in counts))
            for name, summary in self.schemes.items()
        ]
        return [
            Table(header=tuple(Moment.model_fields), rows=moments),
            Table(header=("policy", *peaks, *counts), rows=rows),
        ]


class View(Result):
    """What the panel shows: the chosen policy; `shard_ranks` is its number of ranks, null for true and false."""

    selected: PolicyName
    current: Summary
    shard_ranks: int | None


@dataclass(frozen=True)
class _Group:
    """One group's bytes, of one rank; `kept` is what it holds of the gathered parameters after the forward."""

    index: int
    shard: int
    gathered: int
    kept: int
    gradients: int
    reduce: int
    sharded_gradients: int


@dataclass
class _Rank:
    """A rank's memory as the step goes on; the moments so far."""

    sharded: int
    optimizer: int
    gathered: int = 0
    gather_buffers: int = 0
    full_gradients: int = 0
    reduce_buffers: int = 0
    sharded_gradients: int = 0
    phase: Phase = "start"
    moments: list[Moment] = field(default_factory=list)

    def note(self, event: Event, group: _Group | None = None) -> None:
        """Write down what is held now."""
        held = {
            name: getattr(self, name)
            for name in Moment.model_fields
            if name not in ("phase", "event", "group", "total")
        }
        index = None if group is None else group.index
        self.moments.append(Moment(phase=self.phase, event=event, group=index, total=sum(held.values()), **held))


def _ceil(elements: int, ranks: int) -> int:
    return -(-elements // ranks)


def _group(index: int, elements: int, inputs: Inputs, policy: bool | int) -> _Group:
    shard = _ceil(elements, inputs.ranks)
    padded = shard * inputs.ranks
    computed = BYTES[inputs.param_dtype]
    kept = padded if index == 0 or policy is False else 0 if policy is True else padded // policy
    return _Group(
        index=index,
        shard=shard,
        gathered=padded * computed,
        kept=kept * computed,
        gradients=elements * computed,
        reduce=padded * BYTES[inputs.reduce_dtype],
        sharded_gradients=shard * BYTES[inputs.sharded_dtype],
    )


def _groups(inputs: Inputs, policy: bool | int) -> tuple[_Group | None, list[_Group]]:
    """The root's group, None where it has no parameters, and the layers' groups in order."""
    sizes = inputs.parameters * inputs.layers if len(inputs.parameters) == 1 else inputs.parameters
    root = _group(0, inputs.root_parameters, inputs, policy) if inputs.root_parameters else None
    return root, [_group(i, size, inputs, policy) for i, size in enumerate(sizes, 1)]


def _forward(rank: _Rank, root: _Group | None, layers: list[_Group], prefetch: bool) -> None:
    """Gather, copy out, compute, reshard; a gather buffer stays until the next one has been copied out of."""
    rank.phase = "forward"
    held = 0
    ahead = False
    for group, following in pairwise([*([root] if root else []), *layers, None]):
        assert group is not None
        if not ahead:
            rank.gather_buffers += group.gathered
            rank.note("gather", group)
        rank.gather_buffers -= held
        rank.gathered += group.gathered
        held = group.gathered
        rank.note("copy_out", group)
        ahead = prefetch and group is not root and following is not None
        if ahead and following is not None:
            rank.gather_buffers += following.gathered
            rank.note("prefetch", following)
        if group is not root:
            rank.note("compute", group)
            rank.gathered += group.kept - group.gathered
            if group.kept != group.gathered:
                rank.note("reshard", group)
    if root is not None:
        rank.note("compute", root)
    rank.gather_buffers -= held
    rank.note("release")


def _backward(rank: _Rank, root: _Group | None, layers: list[_Group], prefetch: bool) -> None:
    """From the last layer to the first: gather, compute gradients, reshard, reduce; the root is reduced at the end."""
    rank.phase = "backward"
    again = [group for group in reversed(layers) if group.kept != group.gathered]
    waiting = False  # whether the next group's gather is under way

    def gather(group: _Group, event: Event) -> None:
        rank.gather_buffers += group.gathered
        rank.note(event, group)

    if root is not None:
        if prefetch and again:
            gather(again[0], "prefetch")
            waiting = True
        rank.full_gradients += root.gradients
        rank.note("compute", root)
    for group, following in pairwise([*reversed(layers), None]):
        assert group is not None
        if group.kept != group.gathered:
            if not waiting:
                gather(group, "gather")
            rank.gathered += group.gathered
            rank.note("copy_out", group)
            rank.gather_buffers -= group.gathered
            rank.gathered -= group.kept
            waiting = prefetch and following is not None
            if waiting and following is not None:
                gather(following, "prefetch")
        rank.full_gradients += group.gradients
        rank.note("compute", group)
        _reduce(rank, group)
    if root is not None:
        _reduce(rank, root)
    rank.reduce_buffers = 0
    rank.note("release")


def _reduce(rank: _Rank, group: _Group) -> None:
    """Free the parameters, copy the gradients into one buffer, reduce-scatter them; the buffer before goes first."""
    rank.gathered -= group.gathered
    rank.note("reshard", group)
    rank.reduce_buffers = group.reduce
    rank.note("reduce", group)
    rank.full_gradients -= group.gradients
    rank.sharded_gradients += group.sharded_gradients
    rank.note("reduced", group)


def _moments(inputs: Inputs, policy: bool | int) -> list[Moment]:
    """One whole step under a policy of the layers."""
    root, layers = _groups(inputs, policy)
    elements = sum(group.shard for group in [*layers, *([root] if root else [])])
    states = STATES[inputs.optimizer] * elements * BYTES[inputs.optimizer_dtype]
    rank = _Rank(sharded=elements * BYTES[inputs.sharded_dtype], optimizer=states)
    rank.note("start")
    _forward(rank, root, layers, inputs.prefetch == "both")
    _backward(rank, root, layers, inputs.prefetch != "off")
    rank.phase = "optimizer"
    rank.note("step")
    rank.sharded_gradients = 0
    rank.note("zero_grad")
    return rank.moments


def _traffic(groups: list[_Group], buffer: Literal["gathered", "reduce"], ranks: int) -> Traffic:
    sizes = [getattr(group, buffer) for group in groups]
    return Traffic(
        count=len(sizes), buffer_bytes=sum(sizes), sent_per_rank=sum(size // ranks * (ranks - 1) for size in sizes)
    )


def _summary(inputs: Inputs, policy: bool | int, moments: list[Moment]) -> Summary:
    root, layers = _groups(inputs, policy)
    everything = [*([root] if root else []), *layers]
    peak = max(moments, key=lambda moment: moment.total)
    forward = _traffic(everything, "gathered", inputs.ranks)
    again = _traffic(
        [group for group in layers if group.kept != group.gathered],
        "gathered",
        inputs.ranks if isinstance(policy, bool) else policy,
    )
    scatters = _traffic(everything, "reduce", inputs.ranks)
    sent = forward.sent_per_rank + again.sent_per_rank + scatters.sent_per_rank
    return Summary(
        peak_bytes=peak.total,
        peak_gib=peak.total / GIB,
        peak_phase=peak.phase,
        peak_event=peak.event,
        peak_group=peak.group,
        forward_gathers=forward,
        backward_gathers=again,
        reduce_scatters=scatters,
        sent_per_rank=sent,
        sent_per_rank_gib=sent / GIB,
    )


def _name(policy: bool | int) -> PolicyName:
    return "group" if not isinstance(policy, bool) else "reshard" if policy else "keep"


def compute(inputs: Inputs) -> Result:
    """One step under the chosen policy, beside the other policies' peaks and traffic."""
    chosen = inputs.reshard_after_forward
    policies: list[bool | int] = [True, False] if isinstance(chosen, bool) else [True, False, chosen]
    timelines = {_name(policy): _moments(inputs, policy) for policy in policies}
    moments = timelines[_name(chosen)]
    totals = [moment.total for moment in moments]
    root, layers = _groups(inputs, chosen)
    sizes = list(inputs.parameters * inputs.layers if len(inputs.parameters) == 1 else inputs.parameters)
    count = sum(sizes) + inputs.root_parameters
    shard = sum(group.shard for group in [*layers, *([root] if root else [])])
    stored = BYTES[inputs.sharded_dtype]
    replicated = count * (2 * stored + STATES[inputs.optimizer] * BYTES[inputs.optimizer_dtype])
    return Result(
        total_parameters=count,
        layer_parameters=sizes,
        shard_elements=shard,
        padding_elements=shard * inputs.ranks - count,
        start_bytes=totals[0],
        start_gib=totals[0] / GIB,
        replicated_bytes=replicated,
        replicated_gib=replicated / GIB,
        replicated_sent_per_rank=2 * (inputs.ranks - 1) * count * stored // inputs.ranks,
        peak_share_of_replicated=max(totals) / replicated,
        peak_moment=totals.index(max(totals)),
        moments=moments,
        schemes={_name(policy): _summary(inputs, policy, timelines[_name(policy)]) for policy in policies},
    )


def present(inputs: Inputs) -> View:
    """What is shown of a body: the policy that it chooses itself."""
    result = compute(inputs)
    policy = inputs.reshard_after_forward
    selected = _name(policy)
    shard_ranks = None if isinstance(policy, bool) else policy
    return View(**dict(result), selected=selected, current=result.schemes[selected], shard_ranks=shard_ranks)
