"""How many supervised tokens every update of a fine-tuning run really has, and where the others went.

Words and symbols: sequence i has L_i tokens (`lengths`), the first p_i of which are masked (`prompts`). Longer ones are
cut to `max_length` = T. The model predicts position j from those before it, so that within one sequence

    labels_i = max(0, min(L_i, T) - max(p_i, 1))

for position 0 has nothing before it (the shift). Of the L_i tokens the prompt takes min(p_i, L_i), the shift one more
where p_i = 0, the cut the rest. Rows are sequences, or (`packing` first_fit) sequences packed in order into rows of at
most T; with `boundaries` crossing, the first token of a later sequence in a row is predicted from its neighbour's end.

Rows go to P replicas as `torch.utils.data.DistributedSampler` deals them without shuffling (documentation and source,
torch 2.13): rank r takes rows r, r + P, …; an uneven end is filled up from the beginning, or cut off with `drop_last`.
Each rank groups its rows into microbatches of `microbatch` rows, each padded to its longest row (or to T, or not at
all); `drop_last` also drops an incomplete one. K microbatches make one update, N is the number of labels in it. At the
end of an epoch fewer than K may be left: the `tail` is an update of its own, or dropped, or carried into the next
epoch. Shuffling would change which rows meet, not how many there are. Counts throughout; no losses, no weights.
"""

from dataclasses import dataclass
from fractions import Fraction
from itertools import repeat
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from samestep.app.calculators.token_budget.packing import first_fit
from samestep.app.contract import models
from samestep.app.contract.errors import InputError
from samestep.app.contract.fields import Flag, OrBlank, whole_number, whole_numbers
from samestep.app.contract.limits import MAX_CELLS, MAX_LISTED_CELLS, MAX_RANKS
from samestep.app.contract.numbers import fraction_text

Ints = NDArray[np.int64]

MAX_SEQUENCES = 100_000
MAX_LENGTH = 10**7
SHOWN_SEQUENCES = 12


Lengths = Annotated[tuple[int, ...], whole_numbers(1, MAX_LENGTH)]
Prompts = Annotated[tuple[int, ...], whole_numbers(0, MAX_LENGTH)]
Ranks = Annotated[int, whole_number(1, MAX_RANKS)]
Epochs = Annotated[int, whole_number(1, MAX_CELLS)]
Whole = Annotated[int, whole_number(1, MAX_LENGTH)]


class Inputs(models.Inputs):
    """The sequences, how rows are made of them, and how rows become updates.

    `prompts` is one number for all sequences, or one for each.
    """

    lengths: Lengths = Field(examples=[[900, 350, 1200]])
    prompts: Prompts = Field(default=(0,), examples=[[200, 100, 300]])
    max_length: Whole = 1024
    packing: Literal["none", "first_fit"] = "none"
    boundaries: Literal["masked", "crossing"] = "masked"
    pad_to: Literal["longest", "max_length", "none"] = "longest"
    microbatch: Whole = 2
    K: Ranks = 2
    P: Ranks = 2
    epochs: Epochs = 1
    drop_last: Flag = False
    tail: Literal["update", "drop", "carry"] = "update"


class Query(Inputs, models.Query):
    """The panel has the fields of the body, and sequences of its own; `update` is the one whose counts are shown, blank
    for the last."""

    lengths: Lengths = Field(default="900,350,1200,80,640,2300,410,150,760,520,300", validate_default=True)
    prompts: Prompts = Field(default="200,100,300,0,150,1100,90,30,200,120,60", validate_default=True)
    update: Annotated[Whole | None, OrBlank] = None


class Sequences(models.Result):
    """What becomes of the tokens of the data set, once through: tokens = prompt + shift + cut + labels."""

    count: int
    tokens: int
    prompt_tokens: int
    lost_to_shift: int
    lost_to_truncation: int
    labels: int
    truncated: int = Field(description="sequences longer than max_length")
    without_labels: int = Field(description="sequences that have no label left")
    crossing_labels: int = Field(description="labels predicted from another sequence's end")
    rows: int


class Sampling(models.Result):
    """What one epoch consumes. Rows are repeated to make P divide them, or cut off."""

    rows_per_rank: int
    repeated_rows: int
    repeated_labels: int
    dropped_rows: int
    dropped_labels: int
    microbatches: int = Field(description="microbatches of each rank")


class Tail(models.Result):
    """The last window of an epoch, if it holds fewer `microsteps` than the K that it would be full `of`.

    `factor` = microsteps/K is what dividing by K makes of its gradient; `dropped_labels` are lost in the whole run.
    """

    microsteps: int
    of: int
    factor: str | None
    factor_value: float | None
    dropped_microsteps: int
    dropped_labels: int


class Update(models.Result):
    """One update: the epoch in which it begins and its microsteps, labels N, and the positions of its rows."""

    number: int
    epoch: int
    microsteps: int
    supervised: int
    tokens: int
    padding: int


class Result(models.Result):
    """`updates`, `supervised_per_update` and `counts` (n_rk of every update, [update][rank][microstep]) are null above
    MAX_LISTED_CELLS updates or cells.

    `padding_fraction` is the share of all computed positions. `largest_weight_ratio` is how many times more a token
    weighs in the update with the fewest labels than in the one with the most, if each update is a mean over its own.
    """

    sequences: Sequences
    sampling: Sampling
    tail: Tail
    update_count: int
    empty_updates: int
    supervised: int
    supervised_min: int | None
    supervised_max: int | None
    supervised_mean: float | None
    largest_weight_ratio: float | None
    positions: int
    padding: int
    padding_fraction: float | None
    updates: list[Update] | None
    supervised_per_update: list[int] | None
    counts: list[list[list[int]]] | None

    def tables(self) -> list[models.Table]:
        """One row an update, then the totals."""
        rows = [tuple(value for _, value in update) for update in self.updates or []]
        parts = (self.sequences, self.sampling, self.tail)
        totals = [(name, value) for part in parts for name, value in part]
        totals += [(name, getattr(self, name)) for name in Result.model_fields if name not in _NESTED]
        return [
            models.Table(header=tuple(Update.model_fields), rows=rows),
            models.Table(header=("quantity", "value"), rows=totals),
        ]


_NESTED = ("sequences", "sampling", "tail", "updates", "supervised_per_update", "counts")


class Sequence(models.Result):
    """One sequence as it was typed; `prompt` is as long as it at most."""

    length: int
    prompt: int


class View(Result):
    """What the panel shows: the counts n_rk of one update, and the first sequences, with a prompt each or one."""

    max_length: int
    first: list[Sequence]
    prompt_each: bool
    shown: int | None
    window: list[list[int]] | None


@dataclass(frozen=True)
class _Rows:
    """What the sampler deals: tokens and labels of each row."""

    tokens: Ints
    labels: Ints


@dataclass(frozen=True)
class _Epoch:
    """One epoch's microbatches, (P, M): labels, tokens and padding; and what did not make it into one."""

    labels: Ints
    tokens: Ints
    padding: Ints
    sampling: Sampling


def compute(inputs: Inputs) -> Result:
    """Count every update's labels; InputError where the lists do not fit or the run is too long to count."""
    sequences, rows = _rows(inputs)
    epoch = _epoch(inputs, rows)
    starts, sizes = _windows(inputs, epoch)
    supervised, tokens, padding = (
        _sums(part.sum(axis=0), starts, sizes, inputs.epochs) for part in (epoch.labels, epoch.tokens, epoch.padding)
    )
    filled = supervised[supervised > 0]
    positions = int(tokens.sum() + padding.sum())
    listed = len(starts) <= MAX_LISTED_CELLS
    return Result(
        sequences=sequences,
        sampling=epoch.sampling,
        tail=_tail(inputs, epoch, int(sizes.sum()), int(supervised.sum())),
        update_count=len(starts),
        empty_updates=len(supervised) - len(filled),
        supervised=int(supervised.sum()),
        supervised_min=int(supervised.min()) if len(supervised) else None,
        supervised_max=int(supervised.max()) if len(supervised) else None,
        supervised_mean=float(supervised.mean()) if len(supervised) else None,
        largest_weight_ratio=float(filled.max() / filled.min()) if len(filled) else None,
        positions=positions,
        padding=int(padding.sum()),
        padding_fraction=int(padding.sum()) / positions if positions else None,
        updates=_updates(starts, sizes, (supervised, tokens, padding), epoch) if listed else None,
        supervised_per_update=supervised.tolist() if listed else None,
        counts=_counts(starts, sizes, epoch),
    )


def present(inputs: Inputs) -> View:
    """What is shown of a body: the counts n_rk of the last update."""
    return _shown(inputs, None)


def panel(query: Query) -> View:
    """The panel's state, and the counts n_rk of the chosen update."""
    return _shown(query, query.update)


def _shown(inputs: Inputs, update: int | None) -> View:
    result = compute(inputs)
    last = result.update_count
    shown = last if update is None else update
    if shown > last:
        en, zh = f"must be at most {last}, the last update", f"不能大于 {last}，即最后一次更新"
        raise InputError(en, zh, field="update", code="less_than_equal")
    window = result.counts[shown - 1] if result.counts and shown else None
    each = len(inputs.prompts) > 1
    prompts = inputs.prompts if each else repeat(inputs.prompts[0])
    first = zip(inputs.lengths[:SHOWN_SEQUENCES], prompts, strict=False)
    return View(
        **dict(result),
        max_length=inputs.max_length,
        first=[Sequence(length=length, prompt=min(prompt, length)) for length, prompt in first],
        prompt_each=each,
        shown=shown or None,
        window=window,
    )


def _rows(inputs: Inputs) -> tuple[Sequences, _Rows]:
    """The rows that the sequences make, and what becomes of their tokens on the way."""
    if len(inputs.lengths) > MAX_SEQUENCES:
        en, zh = f"hold more than {MAX_SEQUENCES:,} sequences", f"超过 {MAX_SEQUENCES:,} 条序列"
        raise InputError(en, zh, field="lengths", code="too_long")
    if len(inputs.prompts) not in (1, len(inputs.lengths)):
        en = f"need one number, or one for each of the {len(inputs.lengths)} sequences; there are {len(inputs.prompts)}"
        zh = f"应为一个数，或 {len(inputs.lengths)} 条序列各一个；现在有 {len(inputs.prompts)} 个"
        raise InputError(en, zh, field="prompts", code="shape_mismatch")
    lengths = np.array(inputs.lengths, dtype=np.int64)
    prompts = np.minimum(np.broadcast_to(np.array(inputs.prompts, dtype=np.int64), lengths.shape), lengths)
    kept, first = np.minimum(lengths, inputs.max_length), np.maximum(prompts, 1)
    labels, uncut = np.maximum(kept - first, 0), np.maximum(lengths - first, 0)
    crossing = np.zeros_like(labels)
    bins = [[i] for i in range(len(lengths))]
    if inputs.packing == "first_fit":
        bins = first_fit(kept.tolist(), inputs.max_length)
        if inputs.boundaries == "crossing":
            later = [i for items in bins for i in items[1:]]
            crossing[later] = prompts[later] == 0
    labels = labels + crossing
    order = np.array([i for items in bins for i in items], dtype=np.int64)
    heads = np.cumsum([0, *map(len, bins)])[:-1]
    rows = _Rows(np.add.reduceat(kept[order], heads), np.add.reduceat(labels[order], heads))
    shift = int((prompts == 0).sum() - crossing.sum())
    return Sequences(
        count=len(lengths),
        tokens=int(lengths.sum()),
        prompt_tokens=int(prompts.sum()),
        lost_to_shift=shift,
        lost_to_truncation=int((uncut + crossing - labels).sum()),
        labels=int(labels.sum()),
        truncated=int((lengths > inputs.max_length).sum()),
        without_labels=int((labels == 0).sum()),
        crossing_labels=int(crossing.sum()),
        rows=len(bins),
    ), rows


def _epoch(inputs: Inputs, rows: _Rows) -> _Epoch:
    """Deal the rows to the ranks and group them; InputError where the run has more cells than can be counted."""
    count, ranks, size = len(rows.tokens), inputs.P, inputs.microbatch
    per_rank = count // ranks if inputs.drop_last else -(-count // ranks)
    microbatches = per_rank // size if inputs.drop_last else -(-per_rank // size)
    if microbatches * ranks * inputs.epochs > MAX_CELLS:
        en, zh = f"make more than {MAX_CELLS:,} microbatches in all", f"使微批总数超过 {MAX_CELLS:,}"
        raise InputError(en, zh, field="epochs", code="too_long")
    size = min(size, max(per_rank, 1))  # a larger microbatch holds no more rows
    dealt = (np.arange(per_rank * ranks) % count).reshape(per_rank, ranks).T
    kept, cut = dealt[:, : microbatches * size], dealt[:, microbatches * size :]
    missing = microbatches * size - kept.shape[1]
    cells = np.pad(kept, ((0, 0), (0, missing)), constant_values=count).reshape(ranks, microbatches, size)
    tokens, labels = np.append(rows.tokens, 0), np.append(rows.labels, 0)
    in_cell, filled = tokens[cells], (cells < count).sum(axis=2)
    held = in_cell.sum(axis=2)
    target = in_cell.max(axis=2) if inputs.pad_to == "longest" else inputs.max_length
    padding = np.zeros_like(held) if inputs.pad_to == "none" else filled * target - held
    repeated, left_over = np.arange(count, per_rank * ranks) % count, np.arange(per_rank * ranks, count)
    sampling = Sampling(
        rows_per_rank=per_rank,
        repeated_rows=len(repeated),
        repeated_labels=int(labels[repeated].sum()),
        dropped_rows=len(left_over) + cut.size,
        dropped_labels=int(labels[left_over].sum() + labels[cut].sum()),
        microbatches=microbatches,
    )
    return _Epoch(labels=labels[cells].sum(axis=2), tokens=held, padding=padding, sampling=sampling)


def _windows(inputs: Inputs, epoch: _Epoch) -> tuple[Ints, Ints]:
    """Where every update begins in the run's stream of microsteps, and how many it has."""
    length = epoch.sampling.microbatches
    if inputs.tail == "carry":
        starts = np.arange(length * inputs.epochs // inputs.K, dtype=np.int64) * inputs.K
        return starts, np.full(len(starts), inputs.K)
    whole_windows = length // inputs.K
    count = whole_windows if inputs.tail == "drop" else -(-length // inputs.K)
    in_epoch = np.arange(count, dtype=np.int64) * inputs.K
    starts = (in_epoch + length * np.arange(inputs.epochs)[:, None]).ravel()
    return starts, np.tile(np.minimum(inputs.K, length - in_epoch), inputs.epochs)


def _sums(per_microstep: Ints, starts: Ints, sizes: Ints, epochs: int) -> Ints:
    """The sums over windows of a stream that repeats every epoch."""
    ends: Ints = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(np.tile(per_microstep, epochs))])
    sums: Ints = ends[starts + sizes] - ends[starts]
    return sums


def _tail(inputs: Inputs, epoch: _Epoch, used: int, supervised: int) -> Tail:
    length = epoch.sampling.microbatches
    microsteps = length % inputs.K
    factor = Fraction(microsteps, inputs.K) if microsteps and inputs.tail == "update" else None
    return Tail(
        microsteps=microsteps,
        of=inputs.K,
        factor=None if factor is None else fraction_text(factor),
        factor_value=None if factor is None else float(factor),
        dropped_microsteps=length * inputs.epochs - used,
        dropped_labels=int(epoch.labels.sum()) * inputs.epochs - supervised,
    )


def _updates(starts: Ints, sizes: Ints, sums: tuple[Ints, Ints, Ints], epoch: _Epoch) -> list[Update]:
    length = epoch.sampling.microbatches
    columns = (starts.tolist(), sizes.tolist(), *(part.tolist() for part in sums))
    return [
        Update(
            number=i + 1,
            epoch=start // length + 1,
            microsteps=size,
            supervised=supervised,
            tokens=tokens,
            padding=padding,
        )
        for i, (start, size, supervised, tokens, padding) in enumerate(zip(*columns, strict=True))
    ]


def _counts(starts: Ints, sizes: Ints, epoch: _Epoch) -> list[list[list[int]]] | None:
    """n_rk of every update: [update][rank][microstep]."""
    if sizes.sum() * len(epoch.labels) > MAX_LISTED_CELLS:
        return None
    steps = [np.arange(start, start + size) % epoch.labels.shape[1] for start, size in zip(starts, sizes, strict=True)]
    return [epoch.labels[:, step].tolist() for step in steps]
