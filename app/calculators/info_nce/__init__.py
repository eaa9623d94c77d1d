"""InfoNCE over P ranks: the loss and the gradients that each way of gathering representations really gives.

Words and symbols. Rank r of P owns B_r queries q_i and their documents d_i (a pair has one number i, N = Σ B_r), and
may ship H_r hard negatives h. Candidates are the documents and hard negatives of all ranks, rank by rank. With the
temperature τ and s = 1/τ (or s = e^`logit_scale_log`, learned),

    logit_ij = s·⟨q_i, c_j⟩       ℓ_i = −log softmax_j(logit_i)[column of d_i]       L = (1/N) Σ_i ℓ_i

(van den Oord, Li, Vinyals 2018, arXiv 1807.03748, with in-batch negatives.) `cosine` divides every vector by its length
first. `bidirectional` is half of L and half of the same with documents as rows and all queries as candidates; hard
negatives form no rows. L and its derivatives are the `reference`; a scheme (see `gather_schemes`) is what an
implementation computes in its place.

All gradients are those after the reduction over ranks. `grad_wq` belongs to one shared weight with q = w·a at w = 1,
`_per_dim` to one weight a dimension; documents and hard negatives share `wd`. `grad_log_scale` is ∂/∂log s. Losses are
in nats, vectors and τ without unit.
"""

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import chain
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import ConfigDict, Field, ValidationError, model_validator

from samestep.app.calculators.info_nce.embeddings import Embeddings
from samestep.app.calculators.info_nce.gather_flows import Outcomes, float_or_inf, outcomes
from samestep.app.calculators.info_nce.gather_results import (
    Derivatives,
    Document,
    RankRow,
    Reference,
    SchemeResult,
    documents_of,
    gradient_rows,
)
from samestep.app.calculators.info_nce.gather_schemes import NAMED_SCHEMES, REFERENCE, Scheme, SchemeName
from samestep.app.calculators.info_nce.likeness import Sizes, differences
from samestep.app.calculators.info_nce.sent_gradients import Component, TableRow, listed, sent_gradients
from samestep.app.calculators.info_nce.vectors import MAX_QUERIES, HardNegatives, Pairs, Vectors, misfits
from samestep.app.contract.errors import InputError
from samestep.app.contract.fields import JSON, Positive, Real, RowsText, whole_numbers
from samestep.app.contract.models import Inputs as InputsBase, Query as QueryBase, Result as ResultBase, Table, chosen
from samestep.app.contract.rows import Rows

MAX_SCHEMES = 64
MAX_GRADIENT_NUMBERS = 20_000_000
"""Numbers in all gradients of an answer: eight schemes at the limits of queries and dimensions fit."""

SCALES = 1e-290, 1e290
"""Beyond these 1/τ, products of float64 numbers lose digits before the scale can bring them back."""

DEFAULT_TAU = Fraction(1)

Similarity = Literal["dot", "cosine"]
Direction = Literal["q2d", "bidirectional"]


class Inputs(InputsBase):
    """Embeddings of any number of ranks, and the schemes to compare with the full objective."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"q": [[[1]], [[2]]], "d": [[[1]], [[-1]]], "tau": 1},
                {
                    "q": [[[0.6, -0.8], [0.2, 0.4]], [[-0.5, 0.3]]],
                    "d": [[[0.5, -0.7], [0.1, 0.5]], [[-0.6, 0.1]]],
                    "hard_negatives": [[[0.4, 0.4]], []],
                    "tau": "0.07",
                    "similarity": "cosine",
                    "direction": "bidirectional",
                    "schemes": [{"name": "detached", "gather": "detach_keep_local", "loss": "local"}],
                },
            ]
        }
    )

    q: Pairs
    d: Pairs
    hard_negatives: HardNegatives = None
    tau: Positive | None = Field(default=None, description="temperature, 1 if neither it nor logit_scale_log is given")
    logit_scale_log: Real | None = Field(default=None, description="log(1/τ), in place of tau")
    similarity: Similarity = "dot"
    direction: Direction = "q2d"
    schemes: Annotated[tuple[Scheme, ...], JSON] = Field(default=NAMED_SCHEMES, min_length=1, max_length=MAX_SCHEMES)

    @model_validator(mode="after")
    def _fit_together(self) -> "Inputs":
        for error in chain(self._shape_errors(), self._value_errors(), self._scheme_errors()):
            raise error
        return self

    @property
    def vectors(self) -> dict[str, Vectors]:
        """The vectors given, by the name of their field."""
        given = {"q": self.q, "d": self.d, "hard_negatives": self.hard_negatives}
        return {name: vectors for name, vectors in given.items() if vectors is not None}

    def _shape_errors(self) -> Iterator[InputError]:
        if not self.q.dimensions:
            yield InputError("q needs at least one query", "q 至少要有一个 query", "q", "too_short")
        yield from misfits(self.vectors, self.q)
        for r, (queries, documents) in enumerate(zip(self.q.counts, self.d.counts, strict=True)):
            if queries == 0:
                en = f"q: rank {r} has no query, and a loss over none is no mean"
                yield InputError(en, f"q：rank {r} 没有 query，loss 无从取均值", ("q", r), "too_short")
            if documents != queries:
                en = f"d: rank {r} has {documents} documents for {queries} queries; each query needs its own"
                zh = f"d：rank {r} 有 {documents} 个文档、{queries} 个 query，每个 query 须有自己的文档"
                yield InputError(en, zh, ("d", r), "shape_mismatch")

    def _value_errors(self) -> Iterator[InputError]:
        if self.tau is not None and self.logit_scale_log is not None:
            en, zh = "give tau or logit_scale_log, not both", "tau 与 logit_scale_log 只能给一个"
            yield InputError(en, zh, "logit_scale_log", "exclusive")
        low, high = SCALES
        if not low <= self.scale <= high:
            en = f"{self.scale_field}: 1/τ must lie between {low:g} and {high:g}, or logits leave float64's range"
            zh = f"{self.scale_field}：1/τ 须在 {low:g} 与 {high:g} 之间，否则 logit 超出 float64 的范围"
            yield InputError(en, zh, self.scale_field, "number_range")
        if self.similarity == "cosine":
            for name, vectors in self.vectors.items():
                for r, i in vectors.zeros():
                    en = f"{name}[{r}][{i}] is the zero vector, which has no direction: its cosine is undefined"
                    zh = f"{name}[{r}][{i}] 是零向量，没有方向，cosine 无定义"
                    yield InputError(en, zh, (name, r, i), "zero_vector")

    def _scheme_errors(self) -> Iterator[InputError]:
        names = [scheme.name for scheme in self.schemes]
        for i, name in enumerate(names):
            if name in names[:i]:
                en, zh = f"schemes: the name “{name}” is given twice", f"schemes：名称“{name}”重复"
                yield InputError(en, zh, ("schemes", i, "name"), "duplicate")
        numbers = (1 + len(names)) * sum(vectors.array.size for vectors in self.vectors.values())
        if numbers > MAX_GRADIENT_NUMBERS:
            en = f"schemes: the answer would hold {numbers:,} gradient numbers, the limit is {MAX_GRADIENT_NUMBERS:,}"
            zh = f"schemes：结果将含 {numbers:,} 个梯度数，上限为 {MAX_GRADIENT_NUMBERS:,}"
            yield InputError(en, zh, "schemes", "too_long")

    @property
    def scale(self) -> float:
        """s = 1/τ; 0 or inf where float64 cannot hold it."""
        if self.logit_scale_log is None:
            return float_or_inf(1 / (DEFAULT_TAU if self.tau is None else self.tau))
        return math.exp(min(float(self.logit_scale_log), 709.0))

    @property
    def scale_field(self) -> str:
        """The field that the scale comes from."""
        return "tau" if self.logit_scale_log is None else "logit_scale_log"

    def embeddings(self) -> Embeddings:
        """What the losses are computed from."""
        return Embeddings.of(
            self.q,
            self.d,
            self.hard_negatives,
            self.scale,
            cosine=self.similarity == "cosine",
            both_ways=self.direction == "bidirectional",
        )

    def beyond_range(self, scheme: int | None = None) -> InputError:
        """What to say when a result, or one of the scheme with this number, is beyond float64."""
        if scheme is not None and not self.schemes[scheme].plain:
            name = self.schemes[scheme].name
            en = f"scheme “{name}” leads to results beyond float64's range: take smaller factors or a larger τ"
            zh = f"方案“{name}”的结果超出 float64 的范围，请取更小的系数或更大的 τ"
            return InputError(en, zh, ("schemes", scheme), "number_range")
        field = self.scale_field
        en = f"{field}: with these vectors the logits or the gradients are beyond float64's range; take a larger τ"
        zh = f"{field}：这组向量使 logit 或梯度超出 float64 的范围，请取更大的 τ"
        return InputError(en, zh, field, "number_range")


class Result(ResultBase):
    """The reference, and one entry of `schemes` a scheme, by name."""

    reference: Reference
    schemes: dict[str, SchemeResult]

    def tables(self) -> list[Table]:
        weights = ("grad_wq", "grad_wd", "grad_log_scale")
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
    finite = np.isfinite(np.concatenate([found.rank_losses, found.log_scale[:, None], wq, wd, totals], axis=1))
    for k in np.flatnonzero(~finite.all(axis=1)).tolist():
        raise inputs.beyond_range(k - 1 if k else None)
    columns = zip(
        found.q, found.d, found.h, totals.tolist(), wq.tolist(), wd.tolist(), found.log_scale.tolist(), strict=True
    )
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
        }
        for of_q, of_d, of_h, total, by_dimension_q, by_dimension_d, log_scale in columns
    ]


RowsPerRank = Annotated[tuple[int, ...] | None, whole_numbers(1, MAX_QUERIES).optional()]
"""Rows of each rank, such as `2,1,3`; blank: one each."""


class Query(QueryBase):
    """The panel's state: queries and documents, one a row, dealt to ranks in order."""

    q: RowsText = Field(default="1;2", validate_default=True)
    d: RowsText = Field(default="1;-1", validate_default=True)
    tau: Positive = DEFAULT_TAU
    scheme: SchemeName = "local_loss_remote_detached"
    similarity: Similarity = "dot"
    direction: Direction = "q2d"
    ranks: RowsPerRank = None

    def inputs(self) -> Inputs:
        """The body of POST that this state stands for. InputError where the fields do not fit together."""
        if len(self.d) != len(self.q):
            en, zh = f"d has {len(self.d)} rows, q has {len(self.q)}", f"d 有 {len(self.d)} 行，q 有 {len(self.q)} 行"
            raise InputError(en, zh, "d", "shape_mismatch")
        counts = self.ranks or (1,) * len(self.q)
        if sum(counts) != len(self.q):
            en = f"ranks: {sum(counts)} rows in all, q has {len(self.q)}"
            raise InputError(en, f"ranks：共 {sum(counts)} 行，q 有 {len(self.q)} 行", "ranks", "shape_mismatch")
        q, d = (_dealt(name, getattr(self, name), counts) for name in ("q", "d"))
        try:
            return Inputs(q=q, d=d, tau=self.tau, similarity=self.similarity, direction=self.direction)
        except ValidationError as error:  # the fields are read already: what is left is how they fit together
            raise error.errors()[0]["ctx"]["error"] from None


def _dealt(name: str, rows: Rows, counts: Sequence[int]) -> Vectors:
    for i, row in enumerate(rows):
        if len(row) != len(rows[0]):
            en = f"{name}: row {i + 1} has {len(row)} dimensions, row 1 has {len(rows[0])}"
            zh = f"{name}：第 {i + 1} 行有 {len(row)} 维，第 1 行有 {len(rows[0])} 维"
            raise InputError(en, zh, name, "shape_mismatch")
    return Vectors(np.array(rows, dtype=np.float64), counts)


class View(Result):
    """What the panel shows.

    `contributions[j][i]` is the part of the full ∂L/∂d_j that runs through logit_ij, which query i sends: 1/N (and,
    with two directions, the halves) inside. `table`, `contributions` and `documents` are null, with the reason, for
    states too large to list.
    """

    selected: str
    current: SchemeResult
    ranks: list[RankRow]
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
