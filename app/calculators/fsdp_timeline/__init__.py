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

import math
from typing import Literal

from samestep.app.calculators.fsdp_timeline.inputs import STATES, Inputs, PolicyName, Query
from samestep.app.calculators.fsdp_timeline.results import Moment, Result, Summary, Traffic, View
from samestep.app.calculators.fsdp_timeline.timeline import Group, groups_of, moments_of
from samestep.app.mathematics.element_size import BYTES

__all__ = ["STATES", "Inputs", "Query", "Result", "View", "compute", "panel", "present"]

_DENSE = 12
"""A dense decoder layer of width d has about 12·d² parameters: 4·d² of attention, 8·d² of a feed-forward of 4·d."""
_WIDEST = 16_384
"""The width of Llama 3.1 405B (arXiv 2407.21783, table 3): a dense layer much wider is a slip of the reader's."""

GIB = 2**30


def _traffic(groups: list[Group], buffer: Literal["gathered", "reduce"], ranks: int) -> Traffic:
    sizes = [getattr(group, buffer) for group in groups]
    return Traffic(
        count=len(sizes), buffer_bytes=sum(sizes), sent_per_rank=sum(size // ranks * (ranks - 1) for size in sizes)
    )


def _summary(inputs: Inputs, policy: bool | int, moments: list[Moment]) -> Summary:
    root, layers = groups_of(inputs, policy)
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
    timelines = {_name(policy): moments_of(inputs, policy) for policy in policies}
    moments = timelines[_name(chosen)]
    totals = [moment.total for moment in moments]
    root, layers = groups_of(inputs, chosen)
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
    width = math.isqrt(max(result.layer_parameters) // _DENSE)
    return View(
        **dict(result),
        selected=selected,
        current=result.schemes[selected],
        shard_ranks=shard_ranks,
        implausible_width=width if width > _WIDEST else None,
    )


def panel(query: Query) -> View:
    """The panel's state: a whole model's size is cut into equal layers."""
    view = present(query.inputs())
    return view if query.model is None else view.model_copy(update={"assumed": ("equal_layers",)})
