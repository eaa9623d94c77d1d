"""InfoNCE over P ranks: the loss and the gradients that each way of gathering representations really gives.

Words and symbols. Rank r of P owns B_r queries q_i and their documents d_i (a pair has one number i, N = Σ B_r), and
may ship H_r hard negatives h. Candidates are the documents and hard negatives of all ranks, rank by rank. With the
temperature τ and s = 1/τ (or s = e^`logit_scale_log`, learned),

    logit_ij = s·⟨q_i, c_j⟩       ℓ_i = −log softmax_j(logit_i)[column of d_i]       L = (1/N) Σ_i ℓ_i

(van den Oord, Li, Vinyals 2018, arXiv 1807.03748, with in-batch negatives.) With `loss_form` sigmoid every pair is a
loss of its own, ℓ_i = Σ_j softplus(−y_ij·(logit_ij + b)), y = 1 for the query's own document and else −1 (see
`sigmoid`; b is `logit_bias`); ranks of unequal size then need the normalisation by the global count.

`cosine` divides every vector by its length first. `bidirectional` is half of L and half of the same with documents as
rows and all queries as candidates; hard negatives form no rows. L and its derivatives are the `reference`; a scheme
(see `schemes`) is what an implementation computes in its place.

All gradients are those after the reduction over ranks. `grad_wq` belongs to one shared weight with q = w·a at w = 1,
`_per_dim` to one weight a dimension; documents and hard negatives share `wd`. `grad_log_scale` is ∂/∂log s, `grad_bias`
∂/∂b. Losses are in nats, vectors and τ without unit.
"""

from typing import Any, Literal

import numpy as np

from samestep.app.calculators.info_nce.embeddings import Embeddings
from samestep.app.calculators.info_nce.flows import Outcomes, outcomes
from samestep.app.calculators.info_nce.inputs import Inputs, Query
from samestep.app.calculators.info_nce.likeness import Sizes, differences
from samestep.app.calculators.info_nce.results import (
    Derivatives,
    Document,
    RankRow,
    Reference,
    SchemeResult,
    documents_of,
    gradient_rows,
)
from samestep.app.calculators.info_nce.schemes import NAMED_SCHEMES, REFERENCE
from samestep.app.calculators.info_nce.sent_gradients import (
    Component,
    TableRow,
    component,
    listed,
    sent_gradients,
)
from samestep.app.calculators.info_nce.vectors import Vectors
from samestep.app.contract.models import Result as ResultBase, Table, chosen

__all__ = ["NAMED_SCHEMES", "Inputs", "Query", "Result", "View", "compute", "present"]


class Result(ResultBase):
    """The reference, and one entry of `schemes` a scheme, by name."""

    reference: Reference
    schemes: dict[str, SchemeResult]

    def tables(self) -> list[Table]:
        weights = (
            "grad_wq",
            "grad_wd",
            "grad_log_scale",
            *(() if self.reference.grad_bias is None else ("grad_bias",)),
        )
        judged = ("max_abs_diff_grad_q", "max_abs_diff_grad_d", "matches_reference", "log_scale_matches_reference")
        of_reference = (getattr(self.reference, field) for field in weights)
        summary: list[tuple[Any, ...]] = [("reference", self.reference.loss, *of_reference, 0.0, 0.0, True, True)]
        summary += [
            (name, scheme.mean_rank_loss, *(getattr(scheme, field) for field in weights + judged))
            for name, scheme in self.schemes.items()
        ]
        losses = [(name, r, loss) for name, scheme in self.schemes.items() for r, loss in enumerate(scheme.rank_losses)]
        results: dict[str, Derivatives] = {"reference": self.reference, **self.schemes}
        dimensions = tuple(f"value_{k}" for k in range(self.reference.grad_q.dimensions))
        return [
            Table(header=("scheme", "mean_rank_loss", *weights, *judged), rows=summary),
            Table(header=("scheme", "rank", "loss"), rows=losses),
            Table(
                header=("scheme", "gradient", "rank", "vector", *dimensions),
                rows=[row for name, result in results.items() for row in gradient_rows(name, result)],
            ),
        ]


def compute(inputs: Inputs) -> Result:
    """The reference and every scheme. InputError where float64 cannot hold the logits or a result."""
    with np.errstate(all="ignore"):
        return _evaluate(inputs, inputs.embeddings())


def _evaluate(inputs: Inputs, embeddings: Embeddings) -> Result:
    found = outcomes(embeddings, (REFERENCE, *inputs.schemes))
    sizes = Sizes.of(embeddings)
    if not sizes.finite():
        raise inputs.beyond_range()
    reference, *schemes = _derivatives(inputs, found)
    losses = found.rank_losses.tolist()
    means = (found.rank_losses / embeddings.ranks).sum(axis=1).tolist()  # divided first: the sum may be beyond float64
    compared = differences(found, sizes)
    return Result(
        reference=Reference(loss=losses[0][0], **reference),
        schemes={
            scheme.name: SchemeResult(
                **fields,
                rank_losses=losses[k],
                mean_rank_loss=means[k],
                max_abs_diff_grad_q=compared.largest["q"][k],
                max_abs_diff_grad_d=compared.largest["d"][k],
                max_abs_diff_grad_h=None if inputs.hard_negatives is None else compared.largest["h"][k],
                matches_reference=compared.vectors_match[k],
                log_scale_matches_reference=compared.log_scale_matches[k],
            )
            for k, (scheme, fields) in enumerate(zip(inputs.schemes, schemes, strict=True), start=1)
        },
    )


def _derivatives(inputs: Inputs, found: Outcomes) -> list[dict[str, Any]]:
    """The fields of Derivatives, scheme by scheme; InputError where float64 cannot hold one."""
    q, d, hard = inputs.q, inputs.d, inputs.hard_negatives
    wq, wd = (np.einsum("kij,ij->kj", *pair) + 0.0 for pair in ((found.q, q.array), (found.d, d.array)))
    if hard is not None and len(hard.array):
        wd += np.einsum("kij,ij->kj", found.h, hard.array)
    totals = np.stack([wq.sum(axis=1), wd.sum(axis=1)], axis=1)
    if inputs.similarity == "cosine":
        totals[:] = 0.0  # a factor common to all vectors does not change a cosine
    # an entry of a vector's gradient that is not finite shows in wq or wd
    of_logits = np.stack([found.log_scale, found.bias], axis=1)
    finite = np.isfinite(np.concatenate([found.rank_losses, of_logits, wq, wd, totals], axis=1))
    for k in np.flatnonzero(~finite.all(axis=1)).tolist():
        raise inputs.beyond_range(k - 1 if k else None)
    numbers = (totals.tolist(), wq.tolist(), wd.tolist(), (of_logits + 0.0).tolist())
    columns = zip(found.q, found.d, found.h, *numbers, strict=True)
    return [
        {
            "grad_q": Vectors(of_q, q.counts),
            "grad_d": Vectors(of_d, d.counts),
            "grad_h": None if hard is None else Vectors(of_h, hard.counts),
            "grad_wq": total[0],
            "grad_wd": total[1],
            "grad_wq_per_dim": by_dimension_q,
            "grad_wd_per_dim": by_dimension_d,
            "grad_log_scale": log_scale,
            "grad_bias": None if inputs.loss_form == "softmax" else bias,
        }
        for of_q, of_d, of_h, total, by_dimension_q, by_dimension_d, (log_scale, bias) in columns
    ]


class View(Result):
    """What the panel shows.

    `contributions[j][i]` is the part of the full ∂L/∂d_j that runs through logit_ij, which query i sends: 1/N (and,
    with two directions, the halves) inside. `queries`, `table`, `contributions` and `documents` are null, with the
    reason, for states too large to list.
    """

    selected: str
    current: SchemeResult
    ranks: list[RankRow]
    queries: list[Component] | None
    table: list[TableRow] | None
    contributions: list[list[Component]] | None
    documents: list[Document] | None
    reason: Literal["too_large"] | None

    def tables(self) -> list[Table]:
        ranks = [(rank.name, rank.loss, rank.grad_wq, rank.grad_wd) for rank in self.ranks]
        tables = [Table(header=("rank", "loss", "grad_wq", "grad_wd"), rows=ranks), *super().tables()]
        if self.table is not None:
            rows = [
                (row.query, j, logit, probability)
                for row in self.table
                for j, (logit, probability) in enumerate(zip(row.logits, row.probabilities, strict=True))
            ]
            tables.append(Table(header=("query", "document", "logit", "probability"), rows=rows))
        if self.contributions is not None:
            parts = [
                (j, i, *(part if isinstance(part, list) else [part]))
                for j, sent in enumerate(self.contributions)
                for i, part in enumerate(sent)
            ]
            dimensions = tuple(f"contribution_{k}" for k in range(len(parts[0]) - 2))
            tables.append(Table(header=("document", "query", *dimensions), rows=parts))
        return tables


@np.errstate(all="ignore")
def present(inputs: Inputs, scheme: str | None = None) -> View:
    """What is shown of a body: `compute`'s result, and from the same embeddings what each query sends."""
    selected = chosen([scheme.name for scheme in inputs.schemes], scheme)
    embeddings = inputs.embeddings()
    result = _evaluate(inputs, embeddings)
    current = result.schemes[selected]
    short = listed(embeddings)
    sent = sent_gradients(embeddings) if short else None
    if short and sent is None:
        raise inputs.beyond_range()
    return View(
        reference=result.reference,
        schemes=result.schemes,
        selected=selected,
        current=current,
        ranks=_rank_rows(selected, inputs, embeddings, current),
        queries=list(map(component, inputs.q.array.tolist())) if short else None,
        table=sent and sent.table,
        contributions=sent and sent.contributions,
        documents=documents_of(inputs.d, result.reference, current) if short else None,
        reason=None if short else "too_large",
    )


def _rank_rows(selected: str, inputs: Inputs, embeddings: Embeddings, current: SchemeResult) -> list[RankRow]:
    """Before the reduction: what reached the rank's own vectors, times what the reduction divides by."""
    scheme = next(scheme for scheme in inputs.schemes if scheme.name == selected)
    pairs = (current.grad_q, inputs.q), (current.grad_d, inputs.d)
    weights = np.stack([np.sum(gradient.array * vectors.array, axis=1) for gradient, vectors in pairs])
    if inputs.similarity == "cosine":
        weights[:] = 0.0
    sent = embeddings.by_rank(weights) * scheme.reduced_by(embeddings.ranks) + 0.0
    if not np.isfinite(sent).all():
        raise inputs.beyond_range()
    rows = zip(current.rank_losses, *sent.tolist(), strict=True)
    return [RankRow(name=f"rank {r}", loss=loss, grad_wq=wq, grad_wd=wd) for r, (loss, wq, wd) in enumerate(rows)]
