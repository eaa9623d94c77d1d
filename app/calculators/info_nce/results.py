"""What a gathering scheme gives, as the answer has it: gradients nested like the inputs, and the verdicts."""

from collections.abc import Iterator
from typing import Any

from pydantic import Field

from samestep.app.calculators.info_nce.sent_gradients import Component, component
from samestep.app.calculators.info_nce.vectors import Gradients, Vectors
from samestep.app.contract.models import Result


class Derivatives(Result):
    """Gradients after the reduction, nested like the inputs; `grad_bias` is the sigmoid's."""

    grad_q: Gradients
    grad_d: Gradients
    grad_h: Gradients | None = Field(default=None, exclude_if=lambda value: value is None)
    grad_wq: float
    grad_wd: float
    grad_wq_per_dim: list[float]
    grad_wd_per_dim: list[float]
    grad_log_scale: float
    grad_bias: float | None = Field(default=None, exclude_if=lambda value: value is None)


class Reference(Derivatives):
    """The full objective and its derivatives."""

    loss: float


class SchemeResult(Derivatives):
    """What one scheme gives. `matches_reference` speaks of the gradients of all vectors, not of the log scale's;
    `likeness` says when a difference is one.
    """

    rank_losses: list[float]
    mean_rank_loss: float
    max_abs_diff_grad_q: float
    max_abs_diff_grad_d: float
    max_abs_diff_grad_h: float | None = Field(default=None, exclude_if=lambda value: value is None)
    matches_reference: bool
    log_scale_matches_reference: bool


class RankRow(Result):
    """A rank before the reduction: its own loss, and the gradients of its copies of the shared weights."""

    name: str
    loss: float
    grad_wq: float
    grad_wd: float


class Document(Result):
    """d_j itself, and ∂/∂d_j: what the chosen scheme keeps, and the full objective's."""

    name: str
    value: Component
    kept: Component
    full: Component


def gradient_rows(name: str, result: Derivatives) -> Iterator[tuple[Any, ...]]:
    """For CSV: name, gradient, rank, place, numbers."""
    for field in ("grad_q", "grad_d", "grad_h"):
        vectors: Vectors | None = getattr(result, field)
        for r, rank in enumerate([] if vectors is None else vectors.nested()):
            for i, row in enumerate(rank):
                yield (name, field, r, i, *row)


def documents_of(given: Vectors, reference: Reference, current: SchemeResult) -> list[Document]:
    """Documents are numbered through all ranks."""
    rows = zip(*(vectors.array.tolist() for vectors in (given, current.grad_d, reference.grad_d)), strict=True)
    return [
        Document(name=f"d{j}", value=component(value), kept=component(kept), full=component(full))
        for j, (value, kept, full) in enumerate(rows)
    ]
