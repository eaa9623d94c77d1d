"""First-fit packing: every item goes into the first bin that still has room for it, else into a new one."""

from collections.abc import Sequence


def first_fit(sizes: Sequence[int], capacity: int) -> list[list[int]]:
    """The indices of the items in every bin, in the order in which they came; each size must be at most `capacity`.

    A tree over the bins holds the most room in each of its halves, so that a bin is found in log(n) steps.
    """
    leaves = 1
    while leaves < len(sizes):
        leaves *= 2
    room = [capacity] * (2 * leaves)
    bins: list[list[int]] = []
    for index, size in enumerate(sizes):
        node = 1
        while node < leaves:
            node *= 2
            if room[node] < size:
                node += 1
        if node - leaves == len(bins):
            bins.append([])
        bins[node - leaves].append(index)
        room[node] -= size
        while node > 1:
            node //= 2
            room[node] = max(room[2 * node], room[2 * node + 1])
    return bins
