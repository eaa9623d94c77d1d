"""How many bytes every rank sends in a collective, by algorithm: counted edge by edge, for any number of ranks.

P ranks; sizes in bytes. What each algorithm is, and what it does not include, stands at its function. A rank's bytes
are those that it hands to others: in total as many are received. Sizes that P does not divide are cut like
`numpy.array_split` cuts: the first chunks are one element longer.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Op = Literal["all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all"]


@dataclass(frozen=True)
class Sent:
    """`steps` rounds, one after the other; `per_rank[r]` bytes sent by rank r."""

    steps: int
    per_rank: tuple[int, ...]


def chunks(elements: int, ranks: int) -> list[int]:
    """Sizes of `ranks` consecutive parts of `elements`."""
    size, longer = divmod(elements, ranks)
    return [size + (r < longer) for r in range(ranks)]


def ring(op: Op, elements: int, element_bytes: int, ranks: int, root: int) -> Sent:
    """Rank r sends to rank r+1 only.

    With `elements` per rank as input: reduce_scatter and all_gather pass P-1 chunks on, all_reduce is one after the
    other (Patarasuk and Yuan 2009), broadcast hands the whole buffer from the root down the chain, and in all_to_all
    each block travels as many hops as its receiver is away.
    """
    n, p = elements, ranks
    part = chunks(n, p)
    if op == "all_reduce":
        sent = [2 * n - part[(r + 1) % p] - part[(r + 2) % p] if p > 1 else 0 for r in range(p)]
        return _sent(2 * (p - 1), sent, element_bytes)
    if op == "reduce_scatter":
        return _sent(p - 1, [n - part[r] for r in range(p)], element_bytes)
    if op == "all_gather":
        return _sent(p - 1, [(p - 1) * n] * p, element_bytes)
    if op == "broadcast":
        return _sent(p - 1, [0 if r == (root - 1) % p else n for r in range(p)], element_bytes)
    return _sent(p - 1, [n // p * (p * (p - 1) // 2)] * p, element_bytes)


def pairwise(elements: int, element_bytes: int, ranks: int) -> Sent:
    """all_to_all by direct messages: in step k rank r sends rank r+k its block, nobody passes anything on."""
    return _sent(ranks - 1, [elements - elements // ranks] * ranks, element_bytes)


def tree(op: Op, elements: int, element_bytes: int, ranks: int, root: int) -> Sent:
    """One binomial tree, up to its root and down again; the root is `root` for broadcast, else rank 0.

    Up: all_reduce and reduce_scatter send partial sums of the whole buffer, all_gather what the subtree holds.
    Down: all_reduce, broadcast and all_gather send the whole result, reduce_scatter what the subtree needs. all_to_all
    sends up the blocks that leave a subtree of s ranks, and down those that enter it: s·(P-s) blocks each.
    """
    n, p = elements, ranks
    block = n // p
    sent = [0] * p
    for child, parent, size in _edges(p):
        up, down = {
            "all_reduce": (n, n),
            "reduce_scatter": (n, size * block),
            "all_gather": (size * n, p * n),
            "broadcast": (0, n),
            "all_to_all": (size * (p - size) * block, size * (p - size) * block),
        }[op]
        sent[child] += up
        sent[parent] += down
    shift = root if op == "broadcast" else 0
    rounds = (p - 1).bit_length()
    return _sent(rounds if op == "broadcast" else 2 * rounds, [sent[(r - shift) % p] for r in range(p)], element_bytes)


def _edges(ranks: int) -> Iterator[tuple[int, int, int]]:
    """(child, parent, ranks in the child's subtree) of a binomial tree with root 0: a parent lacks the lowest 1 bit."""
    for child in range(1, ranks):
        low = child & -child
        yield child, child - low, min(low, ranks - child)


def _sent(steps: int, elements: list[int], element_bytes: int) -> Sent:
    return Sent(steps if len(elements) > 1 else 0, tuple(count * element_bytes for count in elements))
