"""What a fingerprint is taken of: the window and both sets of numbers, as a body and as the fields of a panel."""

from collections.abc import Mapping
from fractions import Fraction
from typing import Annotated, Any, ClassVar

from pydantic import Field

from samestep.app.contract.errors import InputError
from samestep.app.contract.fields import (
    JSON,
    NonNegative,
    OptionalRowsText,
    OrBlank,
    Real,
    at_most,
    numbers,
    whole_number,
    whole_rows,
)
from samestep.app.contract.forms import Form
from samestep.app.contract.limits import MAX_RANKS
from samestep.app.contract.models import Inputs as InputsBase, Query as QueryBase

Whole = Annotated[int, whole_number(1, MAX_RANKS)]


MAX_SAMPLES = 10**9
MAX_COUNTED = 200_000
"""Cells whose counts are given; they are exact numbers."""
_Samples = Annotated[list[list[Annotated[int, whole_number(0, MAX_SAMPLES)]]], at_most(MAX_COUNTED), Form("matrix")]
_SampleRows = Annotated[tuple[tuple[int, ...], ...] | None, whole_rows(0, MAX_SAMPLES).optional()]
Gradient = Annotated[tuple[Fraction, ...] | None, numbers().optional()]


OptionalReal = Annotated[Real | None, OrBlank]


OptionalNorm = Annotated[NonNegative | None, OrBlank]


class Part(InputsBase):
    """Mean loss and mean gradient (one entry or several) of one rank or cell over its own tokens."""

    loss: Real | None = None
    gradient: Gradient = None


class Reference(InputsBase):
    """The right update. `replicated_norm` is the norm of the part of the gradient that every rank holds a copy of."""

    loss: Real | None = None
    gradient_norm: NonNegative | None = None
    gradient: Gradient = None
    replicated_norm: NonNegative | None = None
    per_rank: list[Part] | None = Field(default=None, max_length=MAX_RANKS)
    per_cell: list[list[Part]] | None = Field(default=None, max_length=MAX_RANKS)


class Observed(InputsBase):
    """What the run under suspicion showed."""

    loss: Real | None = None
    gradient_norm: NonNegative | None = None
    gradient: Gradient = None


class Inputs(InputsBase):
    """The window and both sets of numbers; `counts` are rows of K values, or of one (a rank's total).

    `samples` are the numbers of sequences in the shape of `counts`.
    """

    P: Whole = Field(examples=[2])
    K: Whole = Field(examples=[3])
    counts: Annotated[list[list[NonNegative]], at_most(MAX_COUNTED), Form("matrix")] | None = None
    samples: _Samples | None = None
    reference: Annotated[Reference, JSON] = Field(examples=[{"loss": 2.07, "gradient_norm": 0.42}])
    observed: Annotated[Observed, JSON] = Field(examples=[{"loss": 2.07, "gradient_norm": 1.26}])


class Query(QueryBase):
    """The panel. `part_gradients` are rows and `part_losses` values, one a rank, or one a cell, rank by rank."""

    logged: ClassVar[tuple[Mapping[str, str], ...]] = (
        {"loss": "reference_loss", "gradient_norm": "reference_norm"},
        {"loss": "observed_loss", "gradient_norm": "observed_norm"},
    )

    P: Whole = 2
    K: Whole = 3
    reference_loss: OptionalReal = Fraction("2.07")
    observed_loss: OptionalReal = Fraction("2.07")
    reference_norm: OptionalNorm = Fraction("0.42")
    observed_norm: OptionalNorm = Fraction("1.26")
    reference_gradient: Gradient = None
    observed_gradient: Gradient = None
    counts: OptionalRowsText = None
    samples: _SampleRows = None
    part_gradients: OptionalRowsText = None
    part_losses: Gradient = None
    replicated_norm: OptionalNorm = None

    def inputs(self) -> Inputs:
        """The body that these fields stand for; InputError where the parts do not fit P and K."""
        gradients, losses = self.part_gradients, self.part_losses
        parts: dict[str, Any] = {}
        if gradients is not None or losses is not None:
            size = len(gradients if gradients is not None else losses or ())
            if size not in (self.P, self.P * self.K) or (gradients and losses and len(gradients) != len(losses)):
                field = "part_gradients" if gradients is not None else "part_losses"
                en = f"need one row a rank (P = {self.P}) or one a cell (P·K = {self.P * self.K})"
                zh = f"应每个 rank 一行（P = {self.P}），或每格一行（P·K = {self.P * self.K}）"
                raise InputError(en, zh, field=field, code="shape_mismatch")
            flat = [
                Part(gradient=gradients[i] if gradients else None, loss=losses[i] if losses else None)
                for i in range(size)
            ]
            by_rank = size == self.P
            cells = [flat[r * self.K : (r + 1) * self.K] for r in range(self.P)]
            parts = {"per_rank": flat} if by_rank else {"per_cell": cells}
        reference = Reference(
            loss=self.reference_loss,
            gradient_norm=self.reference_norm,
            gradient=self.reference_gradient,
            replicated_norm=self.replicated_norm,
            **parts,
        )
        observed = Observed(loss=self.observed_loss, gradient_norm=self.observed_norm, gradient=self.observed_gradient)
        counts = None if self.counts is None else list(map(list, self.counts))
        samples = None if self.samples is None else list(map(list, self.samples))
        return Inputs(P=self.P, K=self.K, counts=counts, samples=samples, reference=reference, observed=observed)
