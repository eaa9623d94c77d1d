"""One step of a rank, event by event, in the order in which FSDP2 gathers, computes, frees and reduces."""

from dataclasses import dataclass, field
from itertools import pairwise

from samestep.app.calculators.fsdp_timeline.inputs import STATES, Inputs
from samestep.app.calculators.fsdp_timeline.results import Event, Moment, Phase
from samestep.app.mathematics.element_size import BYTES


@dataclass(frozen=True)
class Group:
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

    def note(self, event: Event, group: Group | None = None) -> None:
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


def _group(index: int, elements: int, inputs: Inputs, policy: bool | int) -> Group:
    shard = _ceil(elements, inputs.ranks)
    padded = shard * inputs.ranks
    computed = BYTES[inputs.param_dtype]
    kept = padded if index == 0 or policy is False else 0 if policy is True else padded // policy
    return Group(
        index=index,
        shard=shard,
        gathered=padded * computed,
        kept=kept * computed,
        gradients=elements * computed,
        reduce=padded * BYTES[inputs.reduce_dtype],
        sharded_gradients=shard * BYTES[inputs.sharded_dtype],
    )


def groups_of(inputs: Inputs, policy: bool | int) -> tuple[Group | None, list[Group]]:
    """The root's group, None where it has no parameters, and the layers' groups in order."""
    sizes = inputs.parameters * inputs.layers if len(inputs.parameters) == 1 else inputs.parameters
    root = _group(0, inputs.root_parameters, inputs, policy) if inputs.root_parameters else None
    return root, [_group(i, size, inputs, policy) for i, size in enumerate(sizes, 1)]


def _forward(rank: _Rank, root: Group | None, layers: list[Group], prefetch: bool) -> None:
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


def _backward(rank: _Rank, root: Group | None, layers: list[Group], prefetch: bool) -> None:
    """From the last layer to the first: gather, compute gradients, reshard, reduce; the root is reduced at the end."""
    rank.phase = "backward"
    again = [group for group in reversed(layers) if group.kept != group.gathered]
    waiting = False  # whether the next group's gather is under way

    def gather(group: Group, event: Event) -> None:
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


def _reduce(rank: _Rank, group: Group) -> None:
    """Free the parameters, copy the gradients into one buffer, reduce-scatter them; the buffer before goes first."""
    rank.gathered -= group.gathered
    rank.note("reshard", group)
    rank.reduce_buffers = group.reduce
    rank.note("reduce", group)
    rank.full_gradients -= group.gradients
    rank.sharded_gradients += group.sharded_gradients
    rank.note("reduced", group)


def moments_of(inputs: Inputs, policy: bool | int) -> list[Moment]:
    """One whole step under a policy of the layers."""
    root, layers = groups_of(inputs, policy)
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
