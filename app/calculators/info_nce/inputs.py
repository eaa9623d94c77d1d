"""Embeddings of many ranks as a body and as the fields of a panel, and what is wrong with them."""

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import chain
from typing import Annotated, Literal

import numpy as np
from pydantic import ConfigDict, Field, ValidationError, model_validator

from samestep.app.calculators.info_nce.embeddings import Embeddings
from samestep.app.calculators.info_nce.flows import float_or_inf
from samestep.app.calculators.info_nce.schemes import NAMED_SCHEMES, Scheme, SchemeName
from samestep.app.calculators.info_nce.tables import Logits
from samestep.app.calculators.info_nce.vectors import MAX_QUERIES, HardNegatives, Pairs, Vectors, misfits
from samestep.app.contract.errors import InputError
from samestep.app.contract.fields import JSON, Positive, PositiveOrAbsent, Real, RealOrAbsent, RowsText, whole_numbers
from samestep.app.contract.models import Inputs as InputsBase, Query as QueryBase
from samestep.app.contract.rows import Rows

MAX_SCHEMES = 64


MAX_GRADIENT_NUMBERS = 20_000_000
"""Numbers in all gradients of an answer: eight schemes at the limits of queries and dimensions fit."""


SCALES = 1e-290, 1e290
"""Beyond these 1/τ, products of float64 numbers lose digits before the scale can bring them back."""


DEFAULT_TAU = Fraction(1)


Similarity = Literal["dot", "cosine"]


Direction = Literal["q2d", "bidirectional"]


LossForm = Literal["softmax", "sigmoid"]


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
    tau: PositiveOrAbsent = Field(default=None, description="temperature, 1 if neither it nor logit_scale_log is given")
    logit_scale_log: RealOrAbsent = Field(default=None, description="log(1/τ), in place of tau")
    similarity: Similarity = "dot"
    direction: Direction = "q2d"
    loss_form: LossForm = Field(default="softmax", description="sigmoid: every pair by itself, q2d only")
    logit_bias: Real = Field(default=Fraction(0), description="b of the sigmoid; under softmax it would cancel")
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
            yield InputError("q needs at least one query", "q 至少要有一个查询", "q", "too_short")
        yield from misfits(self.vectors, self.q)
        for r, (queries, documents) in enumerate(zip(self.q.counts, self.d.counts, strict=True)):
            if queries == 0:
                en = f"q: rank {r} has no query, and a loss over none is no mean"
                yield InputError(en, f"q：rank {r} 没有查询，损失无从取均值", ("q", r), "too_short")
            if documents != queries:
                en = f"d: rank {r} has {documents} documents for {queries} queries; each query needs its own"
                zh = f"d：rank {r} 有 {documents} 个文档、{queries} 个查询，每个查询须有自己的文档"
                yield InputError(en, zh, ("d", r), "shape_mismatch")

    def _value_errors(self) -> Iterator[InputError]:
        if self.loss_form == "sigmoid" and self.direction != "q2d":
            en = "direction: must be q2d for the sigmoid loss, whose pairs have no direction"
            zh = "direction：sigmoid 损失只能是 q2d，成对的损失没有方向"
            yield InputError(en, zh, "direction", "literal_error")
        if self.loss_form == "sigmoid" and self.hard_negatives is not None and len(self.hard_negatives.array):
            en, zh = "hard_negatives: are not taken by the sigmoid loss", "hard_negatives：sigmoid 损失不接受硬负例"
            yield InputError(en, zh, "hard_negatives", "exclusive")
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
            Logits(self.scale, None if self.loss_form == "softmax" else float(self.logit_bias)),
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
    loss_form: LossForm = "softmax"
    logit_bias: Real = Fraction(0)
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
        kept = ("tau", "similarity", "direction", "loss_form", "logit_bias")
        try:
            return Inputs(q=q, d=d, **{name: getattr(self, name) for name in kept})
        except ValidationError as error:  # the fields are read already: what is left is how they fit together
            raise error.errors()[0]["ctx"]["error"] from None


def _dealt(name: str, rows: Rows, counts: Sequence[int]) -> Vectors:
    for i, row in enumerate(rows):
        if len(row) != len(rows[0]):
            en = f"{name}: row {i + 1} has {len(row)} dimensions, row 1 has {len(rows[0])}"
            zh = f"{name}：第 {i + 1} 行有 {len(row)} 维，第 1 行有 {len(rows[0])} 维"
            raise InputError(en, zh, name, "shape_mismatch")
    return Vectors(np.array(rows, dtype=np.float64), counts)
