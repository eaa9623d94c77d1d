"""A hand-written clip that nobody noted: its norm is unknown, but what it left of each rank's part has one size.

A clip scales its own part to the limit. So where parts of the right gradient carry different factors, and all parts
have the same norm afterwards, each part was clipped by itself: what a rank computed, or the shard that it holds.
"""

from collections.abc import Sequence

import numpy as np

from samestep.app.evidence.bags import Text
from samestep.experiments.audit.judging.case import Case
from samestep.experiments.audit.judging.explaining.reweighting import Span
from samestep.experiments.audit.running.vectors import Array, Vectors
from samestep.experiments.audit.telling.report import Finding
from samestep.experiments.audit.telling.wording import OWN_NORMS, finding, numbers

UNNOTED: Text = {
    "en": 'Told from the gradient alone (ν is the right norm): ctx.note("norm", norm) before scaling would show it.',
    "zh": '仅由梯度推断（ν 为正确的范数）：在缩放之前调用 ctx.note("norm", norm) 即可直接看到。',
}


def clipped_by_rank(case: Case, span: Span, right: Array, observed: Array) -> Finding | None:
    """`per_rank_clip` if every rank's cells carry the rank's own factor, and all ranks' parts are equally long.

    right, observed   weights of the cells in rank order, as many cells a rank
    """
    table, got = right.reshape(case.processes, -1), observed.reshape(case.processes, -1)
    if case.processes == 1 or not np.all(np.any(table, axis=1)):
        return None
    factors = np.divide(got, table, out=np.full_like(table, np.nan), where=table != 0)
    if np.any(np.nanmax(factors, axis=1) - np.nanmin(factors, axis=1) > case.apart * np.nanmax(np.abs(factors))):
        return None
    lengths = [span.length(row) for row in _only_own_rank(table)]
    return _if_equally_long(case, "per_rank_clip", [float(each) for each in np.nanmax(factors, axis=1)], lengths)


def _only_own_rank(table: Array) -> list[Array]:
    """The weights of one rank's cells, zero for all others; rank after rank."""
    return [(table * (np.arange(len(table)) == rank)[:, None]).ravel() for rank in range(len(table))]


def clipped_by_shard(case: Case) -> Finding | None:
    """`local_norm` if the rows that FSDP2 gives to one rank carry a factor of their own, and all shards are as long."""
    if case.processes == 1 or case.gradient is None:
        return None
    factors, lengths = [], []
    for rank in range(case.processes):
        factor, length, missed = _shard_factor(case.reference.gradient, case.gradient, rank, case.processes)
        if missed > case.near or not length:
            return None
        factors.append(factor)
        lengths.append(length)
    return _if_equally_long(case, "local_norm", factors, lengths)


def _shard_factor(expected: Vectors, got: Vectors, rank: int, ranks: int) -> tuple[float, float, float]:
    """The factor of a rank's rows, the norm of the reference's, and the relative residual."""
    pairs = [(_rows(expected[name], rank, ranks), _rows(got[name], rank, ranks)) for name in expected if name in got]
    square = sum(float(np.sum(a * a)) for a, _ in pairs)
    if not square:
        return 0.0, 0.0, 0.0
    factor = sum(float(np.sum(a * b)) for a, b in pairs) / square
    missed = sum(float(np.sum((b - factor * a) ** 2)) for a, b in pairs)
    return factor, float(np.sqrt(square)), float(np.sqrt(missed / square)) / (abs(factor) or 1.0)


def _rows(tensor: Array, rank: int, ranks: int) -> Array:
    """A rank's rows, in chunks as torch.chunk makes them: ⌈rows / ranks⌉ each."""
    rows = tensor.reshape(1) if tensor.ndim == 0 else tensor
    each = -(-len(rows) // ranks)
    return rows[rank * each : (rank + 1) * each]


def _if_equally_long(case: Case, cause: str, factors: Sequence[float], lengths: Sequence[float]) -> Finding | None:
    """The finding if the factors differ and make all parts as long as each other."""
    after = [factor * length for factor, length in zip(factors, lengths, strict=True)]
    if max(factors) - min(factors) <= case.apart * max(factors) or max(after) - min(after) > case.apart * max(after):
        return None
    relative = [length / case.reference.gradient.norm for length in lengths]
    shown = ", ".join(f"{each} ν" for each in numbers(relative).split(", "))
    return finding(
        case,
        cause,
        evidence=(UNNOTED,),
        how=OWN_NORMS,
        norms=shown,
        expected="ν",
        norm_rows=";".join(f"{each:.6g}" for each in relative),
    )
