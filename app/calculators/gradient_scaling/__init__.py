"""By which factor accumulation and reduction multiply the gradient of a batch that is split evenly.

Words and symbols: N = `batch` samples, M = `micro_batches` per replica, D = `replicas`; every micro-batch has
n = N/(M·D) samples. The reference is the gradient of the mean loss, g* = (1/N)·sum_i grad l_i. With equal splits every
sample has the same weight w in a gradient sum_i w·grad l_i, so that each stage is one exact fraction:

    local loss              w = 1/n (mean) or 1 (sum), times the factor on the loss
    accumulated             one replica's N/D samples: w·(N/D) times the replica's own mean gradient
    reduced                 sum: all samples keep w; mean: w/D;  as a multiple of g*: w·N
    final                   the reduced gradient times the factor on the gradient: w·N

A factor on the loss and the same factor on the gradient are equivalent, because every stage is linear. The formulas
follow from the definition of a mean; the two reductions are what `mean` and `sum` of a PyTorch loss do, and what an
all-reduce with SUM or AVG does.

All results are exact fractions as strings (`3`, `1/8`), beside them their nearest float64. Unequal splits have no such
single factor for mean losses; they belong to the calculator `replica_ledger`.
"""

from fractions import Fraction
from typing import Annotated, Literal

from pydantic import model_validator

from samestep.app.contract import models
from samestep.app.contract.errors import InputError
from samestep.app.contract.fields import whole_number
from samestep.app.contract.limits import MAX_RANKS
from samestep.app.contract.numbers import fraction_text

MAX_BATCH = 10**9

StageName = Literal["local", "accumulated", "reduced", "final"]
Relative = Literal["micro_batch_mean", "replica_mean", "g_star"]


Samples = Annotated[int, whole_number(1, MAX_BATCH)]
Replicas = Annotated[int, whole_number(1, MAX_RANKS)]


class Inputs(models.Inputs):
    """An even split of a batch, the reductions it meets, and where the correcting factor is put, if at all."""

    batch: Samples = 64
    micro_batches: Samples = 4
    replicas: Replicas = 2
    loss_reduction: Literal["mean", "sum"] = "mean"
    all_reduce: Literal["sum", "mean"] = "sum"
    scale: Literal["none", "loss", "gradient"] = "none"

    @model_validator(mode="after")
    def _divides(self) -> "Inputs":
        cells = self.micro_batches * self.replicas
        if self.batch % cells:
            product = f"M·D = {self.micro_batches}·{self.replicas} = {cells}"
            en = (
                f"{self.batch} is not divisible by {product}: the splits are then unequal, "
                "which the ledger of counts computes (calculator replica_ledger)"
            )
            zh = f"{self.batch} 不能被 {product} 整除：各份大小不等，请改用按计数的账本（计算器 replica_ledger）"
            raise InputError(en, zh, field="batch", code="not_divisible")
        return self

    @property
    def samples_per_replica(self) -> int:
        return self.batch // self.replicas

    @property
    def samples_per_micro_batch(self) -> int:
        return self.samples_per_replica // self.micro_batches


class Query(Inputs, models.Query):
    """The panel has the fields of the body."""


class Stage(models.Result):
    """The gradient after one stage, as a multiple of the gradient that it is `relative_to`.

    `multiple` is what the chosen scaling gives, `unscaled_multiple` what the raw losses and gradients give.
    """

    name: StageName
    relative_to: Relative
    multiple: str
    multiple_value: float
    unscaled_multiple: str
    unscaled_multiple_value: float


class Result(models.Result):
    """The exact factors. `accumulated_multiple` (of the replica's own mean gradient) and `reduced_multiple` (of g*) are
    those of raw losses, whatever `scale` says; `required_factor` = 1/reduced_multiple; `final_multiple` (of g*) is what
    the optimizer sees under the chosen `scale`.
    """

    accumulated_multiple: str
    reduced_multiple: str
    final_multiple: str
    required_factor: str
    accumulated_multiple_value: float
    reduced_multiple_value: float
    final_multiple_value: float
    required_factor_value: float
    samples_per_micro_batch: int
    samples_per_replica: int
    matches_reference: bool
    stages: list[Stage]

    def tables(self) -> list[models.Table]:
        """One row a stage, and the factor that is needed."""
        rows = [(s.name, s.relative_to, s.multiple, s.multiple_value, s.unscaled_multiple) for s in self.stages]
        header = ("stage", "relative_to", "multiple", "multiple_value", "unscaled_multiple")
        factor = (self.required_factor, self.required_factor_value, self.matches_reference)
        return [
            models.Table(header=header, rows=list(rows)),
            models.Table(header=("required_factor", "required_factor_value", "matches_reference"), rows=[factor]),
        ]


def _multiples(inputs: Inputs, loss_factor: Fraction, gradient_factor: Fraction) -> dict[StageName, Fraction]:
    """Follow the weight of one sample through the stages: a sum over s samples is weight·s times their mean."""
    weight = loss_factor / (inputs.samples_per_micro_batch if inputs.loss_reduction == "mean" else 1)
    local, accumulated = weight * inputs.samples_per_micro_batch, weight * inputs.samples_per_replica
    weight /= inputs.replicas if inputs.all_reduce == "mean" else 1
    reduced = weight * inputs.batch
    return {"local": local, "accumulated": accumulated, "reduced": reduced, "final": reduced * gradient_factor}


_RELATIVE_TO: dict[StageName, Relative] = {
    "local": "micro_batch_mean",
    "accumulated": "replica_mean",
    "reduced": "g_star",
    "final": "g_star",
}


def compute(inputs: Inputs) -> Result:
    """Follow the gradient through the stages twice: as it is, and with the required factor where `scale` puts it."""
    one = Fraction(1)
    raw = _multiples(inputs, one, one)
    required = 1 / raw["reduced"]
    scaled = _multiples(
        inputs,
        loss_factor=required if inputs.scale == "loss" else one,
        gradient_factor=required if inputs.scale == "gradient" else one,
    )
    stages = [
        Stage(
            name=name,
            relative_to=relative_to,
            multiple=fraction_text(scaled[name]),
            multiple_value=float(scaled[name]),
            unscaled_multiple=fraction_text(raw[name]),
            unscaled_multiple_value=float(raw[name]),
        )
        for name, relative_to in _RELATIVE_TO.items()
    ]
    return Result(
        accumulated_multiple=fraction_text(raw["accumulated"]),
        reduced_multiple=fraction_text(raw["reduced"]),
        final_multiple=fraction_text(scaled["final"]),
        required_factor=fraction_text(required),
        accumulated_multiple_value=float(raw["accumulated"]),
        reduced_multiple_value=float(raw["reduced"]),
        final_multiple_value=float(scaled["final"]),
        required_factor_value=float(required),
        samples_per_micro_batch=inputs.samples_per_micro_batch,
        samples_per_replica=inputs.samples_per_replica,
        matches_reference=scaled["final"] == 1,
        stages=stages,
    )
