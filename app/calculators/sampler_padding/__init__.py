"""What a distributed sampler's repeats, or its dropped end, do to the mean over a data set.

Words and symbols: D = `dataset_size` samples with the gradients g_i (`per_sample_grad`; any value with a mean, such as
a loss or a score, will do), P = `replicas`. The ranks get what `distributed_sampler` deals: C = P·ceil(D/P) samples
are consumed, of which R = C - D are repeats of the order's start or (`repeat`) of its last sample; with `drop_last`
C = P·floor(D/P), and D - C are dropped. All ranks get the same number, so that the mean of the ranks' means is the mean
over all consumed samples. By the definition of a mean

    repeats:    mean over consumed - mean over the data set = (R/C) · (mean of the repeats - mean over the data set)
    drop_last:  mean over kept - mean over the data set = ((D - C)/C) · (mean over the data set - mean of the dropped)

`mean_over_distinct` counts every consumed sample once. With `microbatch` = b a rank's samples are cut into microbatches
of b, the last of which may be smaller; the mean of all microbatches' means then weighs its samples more.

Exact fractions of the gradients as typed, beside them their nearest float64; above MAX_EXACT_CELLS samples float64
sums alone.
"""

from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated

import numpy as np
from pydantic import Field

from samestep.app.calculators.sampler_padding.distributed_sampler import Indices, Repeat, deal, order
from samestep.app.calculators.sampler_padding.means import Mean, Samples
from samestep.app.contract import models
from samestep.app.contract.errors import InputError
from samestep.app.contract.fields import Flag, OrBlank, RawList, Real, numbers, whole_number
from samestep.app.contract.limits import MAX_CELLS, MAX_EXACT_CELLS, MAX_LISTED_CELLS, MAX_RANKS
from samestep.app.contract.numbers import as_float, exact

MAX_SEED = 2**53 - 1
SHOWN_RANKS, SHOWN_ROUNDS = 8, 12
"""So much of the deal is drawn."""

_LARGEST = 1e300

Size = Annotated[int, whole_number(1, MAX_CELLS)]
Replicas = Annotated[int, whole_number(1, MAX_RANKS)]
Seed = Annotated[int, whole_number(0, MAX_SEED)]


def _as_typed(value: object) -> str:
    """A number's text, checked and kept as it is written."""
    exact(value)
    return str(value).strip()


Typed = Annotated[tuple[str, ...] | None, numbers(_as_typed).optional()]


class Inputs(models.Inputs):
    """The size of the deal, and what each sample contributes, if means are wanted.

    `per_sample_grad` may be shorter than the data set: all further samples have the gradient `other_grad`.
    """

    dataset_size: Size = Field(examples=[10])
    replicas: Replicas = Field(examples=[3])
    shuffle: Flag = False
    drop_last: Flag = False
    repeat: Repeat = "start"
    seed: Seed = 0
    epoch: Seed = 0
    microbatch: Annotated[Size | None, OrBlank] = None
    per_sample_grad: RawList | None = Field(
        default=None, max_length=MAX_CELLS, examples=[[10, -2, 1, 1, 1, 1, 1, 1, 1, 1]]
    )
    other_grad: Annotated[Real | None, OrBlank] = None


class Query(models.Query):
    """The panel: the fields of the body, gradients in one text."""

    dataset_size: Size = 10
    replicas: Replicas = 3
    shuffle: Flag = False
    drop_last: Flag = False
    repeat: Repeat = "start"
    seed: Seed = 0
    epoch: Seed = 0
    microbatch: Annotated[Size | None, OrBlank] = None
    per_sample_grad: Typed = Field(default="10,-2", validate_default=True)
    other_grad: Annotated[Real | None, OrBlank] = Fraction(1)

    def inputs(self) -> Inputs:
        """The body that these fields stand for."""
        fields = {name: getattr(self, name) for name in Query.model_fields}
        if self.per_sample_grad is not None:
            fields["per_sample_grad"] = list(self.per_sample_grad)
        return Inputs(**fields)


Means = dict[str, Mean]


class Deal(models.Result):
    """What the ranks get. Lists are null above MAX_LISTED_CELLS entries.

    `duplicated` are the samples consumed more than once, `most_often` how often the most frequent one is; `repeats`
    counts the surplus C - D.
    """

    per_rank: int
    indices_per_rank: list[list[int]] | None
    consumed: int
    distinct: int
    repeats: int
    duplicated: list[int] | None
    most_often: int
    dropped: list[int] | None
    dropped_count: int
    mean: Mean | None


class Result(models.Result):
    """The chosen deal, and both ways of making the ranks' shares equal beside each other.

    Means are null without `per_sample_grad` and `other_grad`. The names in `means` say over what each is taken: the
    `dataset`, the `distinct` and all `consumed` samples of the chosen deal, what `drop_last` keeps, the `repeats`, the
    `dropped`; with `microbatch` also the mean of all `microbatch_means`, whose count is that of the microbatches.
    """

    dataset_size: int
    replicas: int
    per_rank: int
    indices_per_rank: list[list[int]] | None
    consumed: int
    distinct: int
    repeats: int
    duplicated: list[int] | None
    most_often: int
    dropped: list[int] | None
    dropped_count: int
    mean_over_dataset: float | None
    mean_over_distinct: float | None
    mean_over_consumed: float | None
    means: Means | None
    repeat: Deal
    drop_last: Deal
    microbatches: list[list[list[int]]] | None

    def tables(self) -> list[models.Table]:
        """One row a consumed sample, then the means."""
        places = [
            (r, place, index)
            for r, indices in enumerate(self.indices_per_rank or [])
            for place, index in enumerate(indices)
        ]
        means = [(name, *(value for _, value in mean)) for name, mean in (self.means or {}).items()]
        return [
            models.Table(header=("rank", "place", "index"), rows=places),
            models.Table(header=("mean", *Mean.model_fields), rows=means),
        ]


class Dealt(models.Result):
    """One sample in the picture of the deal."""

    index: int
    repeated: bool


class View(Result):
    """What the panel shows: `rounds[j][r]` is what rank r gets in round j, as far as it is drawn."""

    cut_end: bool
    shuffle: bool
    rounds: list[list[Dealt]]


@dataclass(frozen=True, eq=False)
class _Shares:
    """The order of the samples, and both deals of it: (P, samples a rank), and the end that is cut off."""

    ordered: Indices
    repeated: Indices
    kept: Indices
    cut: Indices

    @property
    def surplus(self) -> Indices:
        return self.repeated.T.ravel()[len(self.ordered) :]


def _shares(inputs: Inputs) -> _Shares:
    ordered = order(inputs.dataset_size, inputs.seed + inputs.epoch if inputs.shuffle else None)
    repeated, _ = deal(ordered, inputs.replicas, drop_last=False, repeat=inputs.repeat)
    kept, cut = deal(ordered, inputs.replicas, drop_last=True)
    return _Shares(ordered, repeated, kept, cut)


def compute(inputs: Inputs) -> Result:
    """Deal the samples both ways; InputError where the gradients do not fit the data set."""
    return _result(inputs, _shares(inputs))


def _result(inputs: Inputs, shares: _Shares) -> Result:
    samples = _samples(inputs)
    repeat = _deal(shares.repeated, shares.cut[:0], samples)
    drop = _deal(shares.kept, shares.cut, samples)
    chosen, indices = (drop, shares.kept) if inputs.drop_last else (repeat, shares.repeated)
    batches = None if inputs.microbatch is None else _microbatches(indices, inputs.microbatch)
    means = None if samples is None else _means(samples, shares, indices, batches)
    return Result(
        dataset_size=inputs.dataset_size,
        replicas=inputs.replicas,
        **{name: getattr(chosen, name) for name in Deal.model_fields if name != "mean"},
        mean_over_dataset=None if means is None else means["dataset"].value,
        mean_over_distinct=None if means is None else means["distinct"].value,
        mean_over_consumed=None if means is None else means["consumed"].value,
        means=means,
        repeat=repeat,
        drop_last=drop,
        microbatches=None if batches is None or chosen.indices_per_rank is None else batches,
    )


def present(inputs: Inputs) -> View:
    """What is shown of a body: the result, and the part of the deal that is drawn."""
    shares = _shares(inputs)
    dealt = shares.kept if inputs.drop_last else shares.repeated
    rounds = [
        [Dealt(index=index, repeated=j * inputs.replicas + r >= inputs.dataset_size) for r, index in enumerate(row)]
        for j, row in enumerate(dealt.T[:SHOWN_ROUNDS, :SHOWN_RANKS].tolist())
    ]
    return View(**dict(_result(inputs, shares)), cut_end=inputs.drop_last, shuffle=inputs.shuffle, rounds=rounds)


def _samples(inputs: Inputs) -> Samples | None:
    given, size = inputs.per_sample_grad, inputs.dataset_size
    if given is None and inputs.other_grad is None:
        return None
    given = given or []
    if len(given) > size or (len(given) < size and inputs.other_grad is None):
        en = f"has {len(given)} values for {size} samples: one for each, or fewer and other_grad for the rest"
        zh = f"有 {len(given)} 个值，样本有 {size} 个：应一一对应，或少给几个、其余用 other_grad"
        raise InputError(en, zh, field="per_sample_grad", code="shape_mismatch")
    read = exact if size <= MAX_EXACT_CELLS else as_float
    values: list[Fraction | float] = []
    try:
        for value in given:
            values.append(read(value))
    except InputError as error:
        raise InputError(error.en, error.zh, field=("per_sample_grad", len(values)), code=error.code) from None
    if inputs.other_grad is not None:
        values += [read(inputs.other_grad)] * (size - len(given))
    array = np.array(values, dtype=object if read is exact else float)
    if (np.abs(array.astype(float)) > _LARGEST).any():
        raise InputError("have sums that float64 cannot hold", "的和超出 float64 的范围", field="per_sample_grad")
    return Samples(array)


def _means(samples: Samples, shares: _Shares, indices: Indices, batches: list[list[list[int]]] | None) -> Means:
    means = {
        "dataset": samples.mean_over(shares.ordered),
        "distinct": samples.mean_over(np.flatnonzero(np.bincount(indices.ravel()))),
        "consumed": samples.mean_over(indices),
        "drop_last": samples.mean_over(shares.kept),
        "repeats": samples.mean_over(shares.surplus),
        "dropped": samples.mean_over(shares.cut),
    }
    if batches is not None:
        means["microbatch_means"] = samples.mean_of_means([batch for rank in batches for batch in rank])
    return means


def _deal(dealt: Indices, cut: Indices, samples: Samples | None) -> Deal:
    times = np.bincount(dealt.ravel())
    distinct = int(np.count_nonzero(times))
    listed = dealt.size <= MAX_LISTED_CELLS
    return Deal(
        per_rank=dealt.shape[1],
        indices_per_rank=dealt.tolist() if listed else None,
        consumed=dealt.size,
        distinct=distinct,
        repeats=dealt.size - distinct,
        duplicated=np.flatnonzero(times > 1).tolist() if listed else None,
        most_often=int(times.max(initial=0)),
        dropped=np.sort(cut).tolist() if len(cut) <= MAX_LISTED_CELLS else None,
        dropped_count=len(cut),
        mean=None if samples is None else samples.mean_over(dealt),
    )


def _microbatches(dealt: Indices, size: int) -> list[list[list[int]]]:
    """Every rank's samples cut into microbatches: [rank][microbatch][sample]."""
    return [[row[start : start + size] for start in range(0, len(row), size)] for row in dealt.tolist()]
