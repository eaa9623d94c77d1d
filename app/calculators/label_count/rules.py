"""How labels are counted: the rule that agrees with the loss, and those that are often used instead.

A rule is the first position of every sequence that it counts, and four yes-or-no questions. With i a position in its
sequence and j in its row (`rows`), cross-entropy on logits[:-1] against labels[1:] sees the labels at j >= 1; at
a packing boundary (i = 0 of a later sequence) the label is masked, or else predicted from the neighbour's end.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np

from samestep.app.calculators.label_count.rows import Flags, Ints, Runs

SchemeName = Literal[
    "after_shift",
    "before_shift",
    "every_start",
    "shifted_twice",
    "boundaries_mismatched",
    "boundaries_twice",
    "padding_counted",
    "prompt_counted",
    "attention_mask",
    "all_positions",
    "truncation_ignored",
    "eos_masked",
]

First = Callable[[Ints, Flags, Ints], Ints]
"""From what the loss sees first, whether a sequence is a later one, and where it starts: what the rule sees first."""


@dataclass(frozen=True)
class Rule:
    """`tokens`: those without a label count too; `padding`: so does padding; `uncut`: so does what was cut off;
    `ends`: the label of an end of text counts."""

    first: First = lambda seen, later, start: seen
    tokens: bool = False
    padding: bool = False
    uncut: bool = False
    ends: bool = True


RULES: dict[SchemeName, Rule] = {
    "after_shift": Rule(),
    "before_shift": Rule(first=lambda seen, later, start: np.where(later, seen, 0)),
    "every_start": Rule(first=lambda seen, later, start: np.zeros_like(seen)),
    "shifted_twice": Rule(first=lambda seen, later, start: np.maximum(seen, 2 - start)),
    "boundaries_mismatched": Rule(first=lambda seen, later, start: np.where(later, 1 - seen, seen)),
    "boundaries_twice": Rule(first=lambda seen, later, start: np.where(later, 2, 1)),
    "padding_counted": Rule(padding=True),
    "prompt_counted": Rule(tokens=True),
    "attention_mask": Rule(first=lambda seen, later, start: np.zeros_like(seen), tokens=True),
    "all_positions": Rule(first=lambda seen, later, start: np.zeros_like(seen), tokens=True, padding=True),
    "truncation_ignored": Rule(uncut=True),
    "eos_masked": Rule(ends=False),
}
"""Right first. What each does in code:

    after_shift            (labels[:, 1:] != -100).sum(), boundaries as in the loss
    before_shift           (labels != -100).sum(): the label at position 0 of a row counts
    every_start            the labels of each sequence, before any shift
    shifted_twice          by the data loader and once more by the model
    boundaries_mismatched  counted at boundaries where the loss masks them, or the other way round
    boundaries_twice       masked in labels and in the shifted targets, where the same index is the next label
    padding_counted        labels of padding not set to -100
    prompt_counted         labels = inputs, no mask
    attention_mask         attention_mask.sum()
    all_positions          labels.numel()
    truncation_ignored     counted before the rows are cut
    eos_masked             labels == pad_id set to -100, where padding and end of text share an id
"""


def spans(rule: Rule, runs: Runs, crossing: bool) -> tuple[Ints, Ints]:
    """What the rule counts of each run: positions [low, high) of its sequence; ends of text not yet left out."""
    seen = np.where(runs.later & crossing, 0, 1)
    low = np.maximum(runs.begin, rule.first(seen, runs.later, runs.start))
    high = runs.end if rule.uncut else np.minimum(runs.end, runs.kept)
    return low, np.where(runs.labelled | rule.tokens, np.maximum(high, low), low)


def counts(rule: Rule, runs: Runs, crossing: bool) -> Ints:
    """What the rule counts in each cell."""
    low, high = spans(rule, runs, crossing)
    found = runs.per_cell(runs.row, high - low)
    if not rule.ends:
        at, run = runs.end_at, runs.end_run
        found -= runs.per_cell(runs.row[run], ((at >= low[run]) & (at < high[run])).astype(np.int64))
    if rule.padding:
        found += runs.per_cell(np.arange(len(runs.padding)), runs.padding)
    return found


Stretch = tuple[int, int]


def stretches(rule: Rule, runs: Runs, crossing: bool, rows: int) -> list[list[Stretch]]:
    """The positions [begin, end) of a row that the rule counts, for the first rows."""
    low, high = (edge + runs.start for edge in spans(rule, runs, crossing))
    ends = runs.start[runs.end_run] + runs.end_at
    found: list[list[Stretch]] = []
    for row in range(min(rows, len(runs.padding))):
        inside = np.flatnonzero((runs.row == row) & (high > low))
        parts = list(zip(low[inside].tolist(), high[inside].tolist(), strict=True))
        if not rule.ends:
            left_out = ends[runs.row[runs.end_run] == row].tolist()
            parts = [part for begin, end in parts for part in _without(begin, end, left_out)]
        if rule.padding and runs.padding[row]:
            kept = int(runs.tokens[row] - runs.cut[row])
            parts.append((kept, kept + int(runs.padding[row])))
        found.append(parts)
    return found


def _without(begin: int, end: int, left_out: list[int]) -> list[Stretch]:
    """What is left of [begin, end) without some of its positions, which rise."""
    borders = [begin - 1, *(place for place in left_out if begin <= place < end), end]
    return [(a + 1, b) for a, b in pairwise(borders) if a + 1 < b]
