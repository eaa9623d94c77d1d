"""Which samples each rank takes in each microbatch: an audit's plan.

A plan for P ranks and K microbatches holds P × K cells of sample numbers. Every rank has K cells, so that collectives
match; a cell may be empty. Names: `ragged` (every cell non-empty, all counts different, so that no wrong weighting can
hide), `contiguous` (as even as it goes), `empty-rank` (the last rank has nothing), `tail` (the very last microbatch is
short, as with `drop_last=False`).
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

Cells = tuple[tuple[tuple[int, ...], ...], ...]

SEED = 6


class TooFewSamplesError(ValueError):
    """A plan needs more samples than there are, or more ranks."""


@dataclass(frozen=True)
class Plan:
    """`cells[rank][microbatch]`: numbers of samples, each from 0 to N - 1.

    wanted   with so many samples all counts of a ragged plan would differ; 0 if they do
    """

    name: str
    cells: Cells
    wanted: int = 0

    @property
    def counts(self) -> list[list[int]]:
        """Samples per (rank, microbatch)."""
        return [[len(cell) for cell in rank] for rank in self.cells]


def named(name: str, samples: int, ranks: int, microbatches: int) -> list[Plan]:
    """The plan of that name, or with `all` every one that fits; raises TooFewSamplesError."""
    if name != "all":
        return [Plan(name, _cells(_COUNTS[name](samples, ranks, microbatches), ranks))]
    names = [each for each in _COUNTS if each != "empty-rank" or ranks > 1]
    return [plan for each in names for plan in named(each, samples, ranks, microbatches)]


def fitting(name: str, samples: int, ranks: int, microbatches: int) -> list[Plan]:
    """The same; where a ragged plan needs more samples, the raggedest one that fits. Raises TooFewSamplesError."""
    cells = ranks * microbatches
    enough = cells * (cells + 1) // 2
    if samples >= enough or name not in ("ragged", "all"):
        return named(name, samples, ranks, microbatches)
    _require("ragged", samples, cells, ranks, microbatches)
    raggedest = Plan("ragged", _cells(_order(_unequal(samples, cells), ranks), ranks), enough)
    if name == "ragged":
        return [raggedest]
    others = [each for each in _COUNTS if each != "ragged" and (each != "empty-rank" or ranks > 1)]
    return [raggedest, *(plan for each in others for plan in _if_it_fits(each, samples, ranks, microbatches))]


def _if_it_fits(name: str, samples: int, ranks: int, microbatches: int) -> list[Plan]:
    try:
        return named(name, samples, ranks, microbatches)
    except TooFewSamplesError:  # `all` is every plan that fits
        return []


def _unequal(samples: int, cells: int) -> list[int]:
    """At least one sample in every cell, and what is left over in as many different counts as it is enough for."""
    left, step = samples - cells, 1
    more: list[int] = []
    while len(more) < cells - 1 and left - sum(more) >= step:
        more.append(step)
        step += 1
    if more:
        more[-1] += left - sum(more)
    return [1 + extra for extra in [0] * (cells - len(more)) + more]


def _cells(counts: Sequence[int], ranks: int) -> Cells:
    """Consecutive samples in cells of these sizes, rank after rank."""
    starts = [sum(counts[:i]) for i in range(len(counts))]
    cells = [tuple(range(start, start + count)) for start, count in zip(starts, counts, strict=True)]
    each = len(counts) // ranks
    return tuple(tuple(cells[rank * each : (rank + 1) * each]) for rank in range(ranks))


def _require(name: str, samples: int, needed: int, ranks: int, microbatches: int) -> None:
    if samples < needed:
        raise TooFewSamplesError(
            f"the plan “{name}” for {ranks} processes × {microbatches} microbatches needs at least {needed} samples, "
            f"data() gives {samples}"
        )


def _ragged(samples: int, ranks: int, microbatches: int) -> list[int]:
    """1, 2, … and what is left over on the larger ones; then the first order in which all ranks' sums differ."""
    cells = ranks * microbatches
    _require("ragged", samples, cells * (cells + 1) // 2, ranks, microbatches)
    left = samples - cells * (cells + 1) // 2
    counts = [i + 1 + left // cells + (i >= cells - left % cells) for i in range(cells)]
    return _order(counts, ranks)


def _order(counts: list[int], ranks: int) -> list[int]:
    """The first order, of those tried, in which all ranks' sums differ."""
    each = len(counts) // ranks
    for order in _orders(counts):
        sums = [sum(order[rank * each : (rank + 1) * each]) for rank in range(ranks)]
        if len(set(sums)) == ranks:
            return order
    return counts


def _orders(counts: Sequence[int]) -> Iterator[list[int]]:
    chance = random.Random(SEED)
    for _ in range(100):
        yield chance.sample(counts, len(counts))


def _even(samples: int, cells: int) -> list[int]:
    return [samples // cells + (i < samples % cells) for i in range(cells)]


def _contiguous(samples: int, ranks: int, microbatches: int) -> list[int]:
    _require("contiguous", samples, ranks * microbatches, ranks, microbatches)
    return _even(samples, ranks * microbatches)


def _empty_rank(samples: int, ranks: int, microbatches: int) -> list[int]:
    if ranks < 2:
        raise TooFewSamplesError("the plan “empty-rank” needs at least 2 processes")
    _require("empty-rank", samples, (ranks - 1) * microbatches, ranks, microbatches)
    return _even(samples, (ranks - 1) * microbatches) + [0] * microbatches


def _tail(samples: int, ranks: int, microbatches: int) -> list[int]:
    """All cells as even as it goes, but the last one is about half as long."""
    cells = ranks * microbatches
    if cells == 1:
        return [samples]
    _require("tail", samples, 2 * (cells - 1) + 1, ranks, microbatches)
    last = max(1, samples // (2 * cells - 1))
    return [*_even(samples - last, cells - 1), last]


_COUNTS: dict[str, Callable[[int, int, int], list[int]]] = {
    "ragged": _ragged,
    "contiguous": _contiguous,
    "empty-rank": _empty_rank,
    "tail": _tail,
}
NAMES = (*_COUNTS, "all")
