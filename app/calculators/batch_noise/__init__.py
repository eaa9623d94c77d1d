"""How noisy the gradient of one update is, for both objectives and any number of sequences in it.

Words and symbols: an update draws B sequences independently from a population in which length L_i has the share w_i
(`counts`). Token j of a sequence contributes the gradient μ_i + e_ij, where every e has mean 0 and variance σ², two
tokens of one sequence have the correlation ρ, and sequences are independent. So a sequence of L tokens has a mean
gradient h with

    E h = μ_i        Var h = (σ²/L)·(1 + (L - 1)·ρ)

and its L tokens are worth L / (1 + (L - 1)·ρ) independent ones (Kish's design effect). `means` gives μ_i, else it is
μ + slope·(L_i/E L - 1). All of it is one coordinate of the gradient, or its projection on a direction; for the whole
vector σ² is the trace of the covariance and squares are squared norms.

Two objectives (E is the mean over the population):

    per sequence   g_s = E μ_i                   per token   g_t = E[L_i·μ_i] / E L = g_s + Cov(L, μ) / E L

Three estimates of them from one update, with S_i = L_i·h_i the gradient sum of a sequence:

    mean of sequence means    (1/B)·Σ h_i            unbiased for g_s
    sum over actual count     Σ S_i / Σ L_i          a ratio: its expectation is g_s at B = 1 and nears g_t as 1/B
    sum over expected count   Σ S_i / (B·E L)        unbiased for g_t, and noisier: it also feels the number of tokens

Expectation and variance of the ratio are exact sums over the distribution of the other B - 1 and B - 2 lengths, by
Fourier transform; where B·max L is too large for it they are the first-order ones (`method`):
bias ≈ -Cov(L·(μ - g_t), L) / (B·(E L)²), variance ≈ Var(S - g_t·L) / (B·(E L)²).

`noise_scale` is B·Var/g², the number of sequences at which noise and signal are equal, B_simple of McCandlish, Kaplan,
Amodei et al., "An Empirical Model of Large-Batch Training" (arXiv:1812.06162); the ratio estimate is in any text on
survey sampling.

A rate η that was right at B₀ sequences goes over to B by one of three rules:

    linear        η·B/B₀                             Goyal et al., arXiv:1706.02677
    square_root   η·√(B/B₀)                          keeps the variance η²·Var of a step
    noise_scale   η·(1 + B_n/B₀) / (1 + B_n/B)       the step that lowers a quadratic loss most, B_n the noise scale

The first two are what DeepSpeed 0.19.8 has for a variable batch size (`scale_lr`); the last is the first for small
batches, and stands still for large ones.
"""

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Annotated, Literal

from pydantic import Field

from samestep.app.calculators.batch_noise.population import Population, TokenModel
from samestep.app.contract import models
from samestep.app.contract.errors import InputError
from samestep.app.contract.fields import NonNegative, Positive, Real, number, numbers, whole_number, whole_numbers
from samestep.app.contract.limits import MAX_EXACT_CELLS

MAX_LENGTHS = MAX_EXACT_CELLS
MAX_BATCHES = 64
MAX_LENGTH = 10**6
MAX_BATCH = 10**6
_LARGEST_TRANSFORM = 2**20
"""Up to so many points, over all batch sizes, the ratio's moments are exact."""

EstimateName = Literal["mean_of_means", "over_actual_count", "over_expected_count"]
Objective = Literal["per_sequence", "per_token"]


Numbers = Annotated[tuple[Fraction, ...] | None, numbers().optional()]
Lengths = Annotated[tuple[int, ...], whole_numbers(1, MAX_LENGTH)]
Share = Annotated[Fraction, number(low=0, high=1)]
AtLeastOne = Annotated[Fraction, number(low=1)]
BatchSize = Annotated[int, whole_number(1, MAX_BATCH)]


class Inputs(models.Inputs):
    """The population, the model of a token's gradient, and the batches to compare.

    `counts` are the shares of the lengths, up to a factor (all alike if not given); `means` one mean gradient a length,
    in place of `mean` and `slope`. `tokens` is the budget at which batches are compared; `lr` the learning rate that is
    right at `lr_batch` sequences.
    """

    lengths: Lengths = Field(examples=[[16, 64, 256]])
    counts: Numbers = Field(default=None, examples=[[6, 3, 1]])
    means: Numbers = None
    mean: Real = Fraction(1)
    slope: Real = Fraction(-1, 5)
    sigma: NonNegative = Fraction(4)
    rho: Share = Fraction(1, 20)
    batch_sizes: Lengths = Field(default="1,4,16,64,256", validate_default=True)
    objective: Objective = "per_sequence"
    tokens: AtLeastOne = Fraction(1_000_000)
    lr: Positive = Fraction(1, 1000)
    lr_batch: BatchSize = 16


class Query(Inputs, models.Query):
    """The panel has the fields of the body, and a population of its own."""

    lengths: Lengths = Field(default="16,64,256", validate_default=True)
    counts: Numbers = Field(default="6,3,1", validate_default=True)


class LengthRow(models.Result):
    """One length: what share of the sequences and of the tokens it has, and one sequence's mean gradient.

    `effective_tokens` of its tokens would carry as much information if they were independent.
    """

    length: int
    sequence_share: float
    token_share: float
    mean: float
    variance: float
    effective_tokens: float


class Estimate(models.Result):
    """One estimate from one update: its expectation, how far that is from the chosen objective, its standard
    deviation, the root of the mean square error, and the standard deviation of a mean over all updates of the budget.
    """

    expectation: float
    bias: float
    variance: float
    sd: float
    rmse: float
    sd_over_budget: float


class Rates(models.Result):
    """The learning rate at one batch size by three rules; `noise_scale` is null where there is no noise scale."""

    linear: float
    square_root: float
    noise_scale: float | None


class Batch(models.Result):
    """One batch size: B sequences, the tokens that one update consumes, the updates that the token budget pays for."""

    batch: int
    tokens_mean: float
    tokens_sd: float
    updates: float
    estimates: dict[EstimateName, Estimate]
    method: Literal["exact", "first_order"]
    rates: Rates


class Result(models.Result):
    """`objectives` are the two true gradients, `target` the chosen one, `natural` the estimate that belongs to it.

    `noise_scale` (in sequences, and in tokens of the mean length) is null where the target is 0, then with a reason."""

    objectives: dict[Objective, float]
    difference: float
    target: float
    natural: EstimateName
    mean_length: float
    length_cv: float
    noise_scale: float | None
    noise_scale_tokens: float | None
    reason: models.Reason | None
    lengths: list[LengthRow]
    batches: list[Batch]

    def tables(self) -> list[models.Table]:
        """One row a batch size and estimate, then one a length, then the learning rates of each batch size."""
        header = ("batch", "tokens_mean", "tokens_sd", "updates", "method", "estimate", *Estimate.model_fields)
        rows = [
            (b.batch, b.tokens_mean, b.tokens_sd, b.updates, b.method, name, *(value for _, value in estimate))
            for b in self.batches
            for name, estimate in b.estimates.items()
        ]
        lengths = [tuple(value for _, value in row) for row in self.lengths]
        return [
            models.Table(header=header, rows=rows),
            models.Table(header=tuple(LengthRow.model_fields), rows=lengths),
            models.Table(
                header=("batch", *Rates.model_fields),
                rows=[(b.batch, *(value for _, value in b.rates)) for b in self.batches],
            ),
        ]


def compute(inputs: Inputs) -> Result:
    """Both objectives and the estimates of them; InputError where lists do not fit or a result leaves float64."""
    for name, largest in (("lengths", MAX_LENGTHS), ("batch_sizes", MAX_BATCHES)):
        if len(getattr(inputs, name)) > largest:
            en, zh = f"has more than {largest:,} values", f"超过 {largest:,} 个值"
            raise InputError(en, zh, field=name, code="too_long")
    return _result(inputs, _population(inputs))


def _population(inputs: Inputs) -> Population:
    counts = inputs.counts or (Fraction(1),) * len(inputs.lengths)
    for name, values in (("counts", counts), ("means", inputs.means)):
        if values is not None and len(values) != len(inputs.lengths):
            needed = len(inputs.lengths)
            en, zh = f"need {needed} values, one a length", f"应有 {needed} 个值，每个长度一个"
            raise InputError(en, zh, field=name, code="shape_mismatch")
    for place, count in enumerate(counts, start=1):
        if count < 0:
            en, zh = f"value {place} is negative", f"第 {place} 个值为负"
            raise InputError(en, zh, field="counts", code="greater_than_equal")
    if not any(counts):
        raise InputError("add up to 0", "之和为 0", field="counts", code="zero_count")
    tokens = TokenModel(inputs.mean, inputs.slope, inputs.sigma, inputs.rho)
    return Population(inputs.lengths, counts, tokens, inputs.means)


def _result(inputs: Inputs, population: Population) -> Result:
    objectives: dict[Objective, float] = {
        "per_sequence": population.per_sequence,
        "per_token": population.per_token,
    }
    target = objectives[inputs.objective]
    natural: EstimateName = "mean_of_means" if inputs.objective == "per_sequence" else "over_actual_count"
    spread = population.sequence_variance if inputs.objective == "per_sequence" else population.ratio_variance
    scale = spread / target / target if target else None
    exactly = sum(map(population.points, inputs.batch_sizes)) <= _LARGEST_TRANSFORM
    return Result(
        objectives=objectives,
        difference=population.difference,
        target=target,
        natural=natural,
        mean_length=population.mean_length,
        length_cv=math.sqrt(population.length_variance) / population.mean_length,
        noise_scale=scale,
        noise_scale_tokens=None if scale is None else scale * population.mean_length,
        reason=None if target else "zero_reference",
        lengths=_lengths(population, inputs.lengths),
        batches=[
            _batch(population, batch, target, float(inputs.tokens), exactly, _rates(inputs, batch, scale))
            for batch in inputs.batch_sizes
        ],
    )


def _rates(inputs: Inputs, batch: int, scale: float | None) -> Rates:
    lr, growth = float(inputs.lr), batch / inputs.lr_batch
    return Rates(
        linear=lr * growth,
        square_root=lr * math.sqrt(growth),
        noise_scale=None if scale is None else lr * (1 + scale / inputs.lr_batch) / (1 + scale / batch),
    )


def _batch(population: Population, batch: int, target: float, budget: float, exactly: bool, rates: Rates) -> Batch:
    tokens = batch * population.mean_length
    updates = budget / tokens
    moments: dict[EstimateName, tuple[float, float]] = {
        "mean_of_means": (population.per_sequence, population.sequence_variance / batch),
        "over_actual_count": population.ratio(batch, exactly=exactly),
        "over_expected_count": (population.per_token, population.sum_variance / batch),
    }
    return Batch(
        batch=batch,
        tokens_mean=tokens,
        tokens_sd=math.sqrt(batch * population.length_variance),
        updates=updates,
        estimates={name: _estimate(*moment, target, updates) for name, moment in moments.items()},
        method="exact" if exactly else "first_order",
        rates=rates,
    )


def _estimate(expectation: float, variance: float, target: float, updates: float) -> Estimate:
    bias = expectation - target
    return Estimate(
        expectation=expectation,
        bias=bias,
        variance=variance,
        sd=math.sqrt(variance),
        rmse=math.sqrt(bias * bias + variance),
        sd_over_budget=math.sqrt(variance / updates),
    )


def _lengths(population: Population, lengths: Sequence[int]) -> list[LengthRow]:
    columns = (population.share, population.token_share, population.mean, population.variance, population.effective)
    return [
        LengthRow(
            length=length,
            sequence_share=share,
            token_share=token_share,
            mean=mean,
            variance=variance,
            effective_tokens=effective,
        )
        for length, share, token_share, mean, variance, effective in zip(
            lengths, *(column.tolist() for column in columns), strict=True
        )
    ]
