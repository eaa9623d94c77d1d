"""What was measured beside what is expected, quantity by quantity."""

from collections.abc import Sequence
from typing import NamedTuple, cast

from samestep.app.calculators.fsdp_timeline import STATES, Inputs, compute
from samestep.app.evidence.bags import Json, Row
from samestep.app.mathematics.element_size import BYTES
from samestep.experiments.fsdp_timeline.cases import PATHS, Body, Case, sizes, stated
from samestep.experiments.fsdp_timeline.step import Measured
from samestep.experiments.fsdp_timeline.storages import KINDS, Moment
from samestep.experiments.results import row


class Account(NamedTuple):
    """A rank's step, measured or expected: bytes between two steps, while the optimizer steps, and at most.

    None: an expectation says nothing of it.
    """

    at_rest: float
    at_update: float
    peak: float
    moments: list[Moment] | None
    collectives: list[int] | None
    sent: float | None


def account(moments: list[Moment], collectives: list[int], sent: int) -> Account:
    update = next(moment for moment in moments if moment.event == "step")
    peak = max(moment.total for moment in moments)
    return Account(moments[0].total, update.total, peak, moments, collectives, sent)


def shorter(body: Body, rank: int) -> int:
    """Elements by which the shards of a rank fall short of those of rank 0."""
    short = 0
    for elements in sizes(body):
        shard = -(-elements // body["ranks"])
        short += shard - min(shard, max(0, elements - rank * shard))
    return short


def expected(case: Case, name: str, rank: int) -> Account:
    """What an expectation says of a rank, in the calculator's numbers."""
    body = case.body | (PATHS[name].change or {})
    said = compute(Inputs(**body))
    if PATHS[name].change is None:
        gradients = said.total_parameters * BYTES[body["sharded_dtype"]]
        rest, full = said.replicated_bytes - gradients, said.replicated_bytes
        if name == "share":
            return Account(rest / case.ranks, full / case.ranks, full / case.ranks, None, None, None)
        return Account(rest, full, full, None, [0, 0, 1], said.replicated_sent_per_rank)
    less = 0 if case.ddp else shorter(body, rank) * STATES[body["optimizer"]] * BYTES["float32"]
    moments = []
    for moment in said.moments:
        held = {kind: cast(int, getattr(moment, kind)) for kind in KINDS}
        event = "gather" if moment.event == "prefetch" else moment.event  # from outside they look alike
        held["optimizer"] -= less
        moments.append(Moment(moment.phase, event, moment.group, held))
    policy = body["reshard_after_forward"]
    summary = said.schemes["group" if not isinstance(policy, bool) else "reshard" if policy else "keep"]
    gathers = summary.forward_gathers.count + summary.backward_gathers.count
    return account(moments, [gathers, summary.reduce_scatters.count, 0], summary.sent_per_rank)


def apart(one: Sequence[Moment], other: Sequence[Moment]) -> int:
    """Largest difference of one kind at one moment; a moment that one of them does not have is 0 bytes there."""
    first, second = ({moment.key: moment.held for moment in each} for each in (one, other))
    nothing = dict.fromkeys(KINDS, 0)
    return max(
        abs(first.get(key, nothing)[kind] - second.get(key, nothing)[kind])
        for key in first.keys() | second.keys()
        for kind in KINDS
    )


def gaps(got: Account, wanted: Account) -> dict[str, float]:
    """Difference by quantity, as far as the expectation says anything."""
    found: dict[str, float] = {
        name: abs(getattr(got, name) - getattr(wanted, name)) for name in ("at_rest", "at_update", "peak")
    }
    if wanted.moments is not None:
        found["moments"] = apart(cast(list[Moment], got.moments), wanted.moments)
    if wanted.collectives is not None:
        pairs = zip(cast(list[int], got.collectives), wanted.collectives, strict=True)
        found["collectives"] = max(abs(one - other) for one, other in pairs)
    if wanted.sent is not None:
        found["sent"] = abs(cast(float, got.sent) - wanted.sent)
    return found


def compare(case: Case, name: str, ranks: Sequence[Measured]) -> Row:
    """Every rank against what is expected of it; the largest difference counts, and right moments come in order."""
    got = [account(rank.moments, rank.collectives, sum(rank.sent)) for rank in ranks]
    wanted = [expected(case, name, rank) for rank in range(case.ranks)]
    each = [gaps(one, other) for one, other in zip(got, wanted, strict=True)]
    expectation, exceptions = stated(case, name)
    return row(
        case.name,
        name,
        PATHS[name].title,
        expectation,
        {quantity: float(max(one[quantity] for one in each)) for quantity in each[0]},
        expected=exceptions,
        also=expectation != "agrees" or all(map(_in_order, got, wanted)),
        values={
            "peak": got[0].peak,
            "expected_peak": wanted[0].peak,
            "peak_group": max(ranks[0].moments, key=lambda moment: moment.total).group,
            "collectives": cast(Json, got[0].collectives),
            "expected_collectives": cast(Json, wanted[0].collectives),
            "sent": got[0].sent,
            "expected_sent": wanted[0].sent,
        },
    )


def _in_order(got: Account, wanted: Account) -> bool:
    keys = [[moment.key for moment in each.moments or []] for each in (got, wanted)]
    return wanted.moments is None or keys[0] == keys[1]
