"""Ways to compute a contrastive loss over ranks: whose vectors are variables in it, and what it is multiplied by.

Rank r's loss L_r is a mean over its own queries (`local`) or over all (`global`), times `multiplier`, divided by
`divide_by`; `gather` says which vectors are variables in it:

    grad_sum             all of them: the backward of the gather sums what all ranks send to the owner
    detach_keep_local    the rank's own; those of other ranks are constants
    detach_all_docs      the rank's own queries; documents and hard negatives are constants everywhere
    none                 nothing is gathered: own candidates only
    cached_accumulation  one process; chunk = rank; the whole loss evaluated once for each chunk, with the other chunks
                         as constants, and the gradients added up: no reduction

All gradients are those after the `reduction` over ranks: `mean`, as DDP does, or `sum`.
"""

from fractions import Fraction
from typing import Annotated, Literal

from pydantic import Field, model_validator

from samestep.app.contract.errors import InputError
from samestep.app.contract.fields import number_schema, word_or_number
from samestep.app.contract.models import Inputs
from samestep.app.contract.numbers import exact, positive

SchemeName = Literal[
    "local_loss_gather_with_grad",
    "local_loss_remote_detached",
    "global_loss_gather_with_grad",
    "global_loss_remote_detached",
    "global_loss_remote_detached_times_P",
    "local_loss_remote_detached_times_P",
    "local_negatives_only",
    "local_loss_gather_with_grad_times_P",
]


Multiplier = Annotated[Fraction | Literal["P"], word_or_number(("P",), exact, number_schema())]
Divisor = Annotated[Fraction | Literal["P"], word_or_number(("P",), positive, number_schema(exclusiveMinimum=0))]


class Scheme(Inputs):
    """One way to compute the loss and its gradients over ranks; the module's text says what each word means.

    `normalization`: `local_mean` over the queries of the loss, `P_over_global_count` their sum times P/N, or their
    `sum`. `labels`: the `correct` columns, or `global_query_index`, which takes column i for query i and errs where
    ranks ship hard negatives.
    """

    name: Annotated[str, Field(min_length=1, max_length=100)]
    gather: Literal["grad_sum", "detach_keep_local", "detach_all_docs", "none", "cached_accumulation"]
    loss: Literal["local", "global"] = "local"
    multiplier: Multiplier = Fraction(1)
    normalization: Literal["local_mean", "P_over_global_count", "sum"] = "local_mean"
    labels: Literal["correct", "global_query_index"] = "correct"
    reduction: Literal["mean", "sum"] = "mean"
    divide_by: Divisor = Fraction(1)

    @model_validator(mode="after")
    def _can_be_computed(self) -> "Scheme":
        if self.gather == "none" and self.loss == "global":
            en = "loss: with gather none a rank has its own rows only and cannot compute the global loss"
            zh = "损失：gather 为 none 时各 rank 只有自己的行，算不出 global 损失"
            raise InputError(en, zh, "loss", "exclusive")
        return self

    @property
    def whole(self) -> bool:
        """Every rank (or chunk) evaluates the loss of all queries."""
        return self.loss == "global" or self.gather == "cached_accumulation"

    @property
    def plain(self) -> bool:
        """Neither multiplied nor divided, except by P."""
        return {self.multiplier, self.divide_by} <= {"P", Fraction(1)}

    def reduced_by(self, ranks: int) -> int:
        """What the reduction over ranks divides the sum by."""
        return 1 if self.reduction == "sum" or self.gather == "cached_accumulation" else ranks

    def rate(self, size: int, count: int, ranks: int) -> Fraction:
        """What the sum over a loss's `size` of all `count` queries is multiplied by."""
        norm = {
            "local_mean": Fraction(1, size),
            "P_over_global_count": Fraction(ranks, count),
            "sum": Fraction(1),
        }[self.normalization]
        multiplier, divisor = (ranks if factor == "P" else factor for factor in (self.multiplier, self.divide_by))
        return norm * multiplier / divisor


def _named(
    name: SchemeName,
    gather: Literal["grad_sum", "detach_keep_local", "none"],
    loss: Literal["local", "global"],
    multiplier: Multiplier = Fraction(1),
) -> Scheme:
    return Scheme(name=name, gather=gather, loss=loss, multiplier=multiplier)


NAMED_SCHEMES = (
    _named("local_loss_gather_with_grad", "grad_sum", "local"),
    _named("local_loss_remote_detached", "detach_keep_local", "local"),
    _named("global_loss_gather_with_grad", "grad_sum", "global"),
    _named("global_loss_remote_detached", "detach_keep_local", "global"),
    _named("global_loss_remote_detached_times_P", "detach_keep_local", "global", "P"),
    _named("local_loss_remote_detached_times_P", "detach_keep_local", "local", "P"),
    _named("local_negatives_only", "none", "local"),
    _named("local_loss_gather_with_grad_times_P", "grad_sum", "local", "P"),
)
REFERENCE = Scheme(name="reference", gather="grad_sum", loss="global")
"""Every rank evaluates the whole loss with all vectors as variables: the mean over ranks is L itself."""
