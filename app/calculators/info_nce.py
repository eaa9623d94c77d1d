"""InfoNCE over P ranks: the loss and the gradients that each way of gathering representations really gives.

Words and symbols. Rank r of P owns B_r queries q_i and their documents d_i (a pair has one number i, N = Σ B_r), and
may ship H_r hard negatives h. Candidates are the documents and hard negatives of all ranks, rank by rank. With the
temperature τ and s = 1/τ (or s = e^`logit_scale_log`, learned),

    logit_ij = s·⟨q_i, c_j⟩       ℓ_i = −log softmax_j(logit_i)[column of d_i]       L = (1/N) Σ_i ℓ_i

(van den Oord, Li, Vinyals 2018, arXiv 1807.03748, with in-batch negatives.) `cosine` divides every vector by its length
first. `bidirectional` is half of L and half of the same with documents as rows and all queries as candidates; hard
negatives form no rows. L and its derivatives are the `reference`.

A scheme is what an implementation computes in its place. Rank r's loss L_r is a mean over its own queries (`local`) or
over all (`global`), times `multiplier`, divided by `divide_by`; `gather` says which vectors are variables in it:

    grad_sum             all of them: the backward of the gather sums what all ranks send to the owner
    detach_keep_local    the rank's own; those of other ranks are constants
    detach_all_docs      the rank's own queries; documents and hard negatives are constants everywhere
    none                 nothing is gathered: own candidates only
    cached_accumulation  one process; chunk = rank; the whole loss evaluated once for each chunk, with the other chunks
                         as constants, and the gradients added up: no reduction

All gradients are those after the reduction over ranks (`mean`, as DDP does, or `sum`). `grad_wq` belongs to one shared
weight with q = w·a at w = 1, `_per_dim` to one weight a dimension; documents and hard negatives share `wd`.
`grad_log_scale` is ∂/∂log s. Losses are in nats, vectors and τ without unit.
"""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import chain
from typing import Annotated, Any, Literal, overload

import numpy as np
from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    ValidationError,
    WithJsonSchema,
    model_validator,
)

from app.calculators.softmax import Array, Block, Indices, Ranks, Sums, gathered, local, norms, through_unit, units
from app.contract import (
    MAX_RANKS,
    InputError,
    Positive,
    Real,
    Rows,
    Table,
    blank_to_none,
    exact,
    fraction_text,
    number_schema,
    rows_of,
)
from app.contract import (
    Inputs as InputsBase,
)
from app.contract import (
    Query as QueryBase,
)
from app.contract import (
    Result as ResultBase,
)

MAX_QUERIES = 4_096
MAX_DIMENSIONS = 256
MAX_HARD_NEGATIVES = 3 * MAX_QUERIES
MAX_SCHEMES = 64
MAX_GRADIENT_NUMBERS = 20_000_000
"""Numbers in all gradients of an answer: eight schemes at the limits of queries and dimensions fit."""
MAX_LISTED_QUERIES = 64
MAX_LISTED_PARTS = 65_536
"""Above these a panel leaves out the table and the contributions of single queries."""

SCALES = 1e-290, 1e290
"""Beyond these 1/τ, products of float64 numbers lose digits before the scale can bring them back."""

Gather = Literal["grad_sum", "detach_keep_local", "detach_all_docs", "none", "cached_accumulation"]
Direction = Literal["q2d", "bidirectional"]
Similarity = Literal["dot", "cosine"]
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


class Vectors(Sequence[list[list[float]]]):
    """Vectors of all ranks: item r lists those of rank r. Below it lies one array, [vector, dimension]."""

    def __init__(self, array: Array, counts: Sequence[int]) -> None:
        self.array = array
        self.counts = tuple(counts)

    def __len__(self) -> int:
        return len(self.counts)

    @overload
    def __getitem__(self, index: int) -> list[list[float]]: ...
    @overload
    def __getitem__(self, index: slice) -> list[list[list[float]]]: ...
    def __getitem__(self, index: int | slice) -> list[list[float]] | list[list[list[float]]]:
        ranks = range(len(self))[index]
        return self._rank(ranks) if isinstance(ranks, int) else [self._rank(r) for r in ranks]

    def _rank(self, rank: int) -> list[list[float]]:
        first = sum(self.counts[:rank])
        rows: list[list[float]] = self.array[first : first + self.counts[rank]].tolist()
        return rows

    def __repr__(self) -> str:
        return f"Vectors({self.nested()})"

    def nested(self) -> list[list[list[float]]]:
        """As JSON has it: ranks, vectors, numbers."""
        rows = iter(self.array.tolist())
        return [[next(rows) for _ in range(count)] for count in self.counts]

    @property
    def dimensions(self) -> int:
        return int(self.array.shape[1])

    def zeros(self) -> Iterator[tuple[int, int]]:
        """Rank and place of the vectors that are 0."""
        for index in np.flatnonzero(~self.array.any(axis=1)):
            yield _place(self.counts, int(index))


def _place(counts: Sequence[int], index: int) -> tuple[int, int]:
    """Rank, and place in it, of the vector with this number."""
    ends = np.cumsum(counts)
    rank = int(np.searchsorted(ends, index, side="right"))
    return rank, index - int(ends[rank] - counts[rank])


def _read(value: object) -> Vectors:
    """Nested lists (or one array a rank) as Vectors; InputError names the place that cannot be read."""
    if isinstance(value, Vectors):
        return value
    if not isinstance(value, list | tuple):
        raise InputError("must be a list of ranks", "应是各 rank 的列表", code="list_type")
    if len(value) > MAX_RANKS:
        raise InputError(f"has more than {MAX_RANKS:,} ranks", f"超过 {MAX_RANKS:,} 个 rank", code="too_long")
    if value and all(isinstance(rank, np.ndarray) and rank.ndim == 2 and rank.dtype.kind in "fiu" for rank in value):
        return _from_arrays(value)
    for r, rank in enumerate(value):
        for i, row in enumerate(rank if isinstance(rank, list | tuple) else [None]):
            if not isinstance(row, list | tuple):
                raise InputError(f"[{r}][{i}] must be a list of numbers", f"[{r}][{i}] 应是数的列表", code="list_type")
    rows = list(chain.from_iterable(value))
    counts, widths = list(map(len, value)), list(map(len, rows))
    for index, width in enumerate(widths):
        if width != widths[0]:
            r, i = _place(counts, index)
            en = f"[{r}][{i}] has {width} dimensions, the first vector has {widths[0]}"
            raise InputError(en, f"[{r}][{i}] 有 {width} 维，首个向量有 {widths[0]} 维", code="shape_mismatch")
    width = widths[0] if widths else 0
    return Vectors(_numbers(list(chain.from_iterable(rows)), counts, width).reshape(len(rows), width), counts)


def _from_arrays(ranks: Sequence[Any]) -> Vectors:
    if len({rank.shape[1] for rank in ranks}) > 1:
        raise InputError("has vectors of different dimensions", "各向量的维数不同", code="shape_mismatch")
    array = np.concatenate(ranks).astype(np.float64)
    if not np.isfinite(array).all():
        raise InputError("must hold finite numbers", "必须全是有限的数", code="finite_number")
    return Vectors(array, [len(rank) for rank in ranks])


def _numbers(flat: list[Any], counts: Sequence[int], width: int) -> Array:
    if set(map(type, flat)) <= {float, int}:
        try:
            array = np.array(flat, dtype=np.float64)
        except OverflowError:  # an integer beyond float64: the reading below names its place
            array = np.array([np.nan])
        if np.isfinite(array).all():
            return array
    numbers: list[float] = []
    try:
        for value in flat:
            numbers.append(_number(value))
    except InputError as error:
        r, i = _place(counts, len(numbers) // width)
        place = f"[{r}][{i}][{len(numbers) % width}] "
        raise InputError(place + error.en, place + error.zh, code=error.code) from None
    return np.array(numbers)


_DECIMAL = re.compile(r"[+-]?[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]{1,3})?")


def _number(value: object) -> float:
    """What `exact` means by a value, as float64; a fast way for the decimals that millions of texts are."""
    if isinstance(value, str) and len(value) <= 40 and _DECIMAL.fullmatch(value):
        number = float(value)
        if math.isfinite(number) and number != 0.0:
            return number
    return float(exact(value))


def _vectors_schema(vectors: int, least: int) -> dict[str, Any]:
    numbers = {"type": "array", "minItems": 1, "maxItems": MAX_DIMENSIONS, "items": number_schema()}
    rank = {"type": "array", "minItems": least, "maxItems": vectors, "items": numbers}
    return {
        "type": "array",
        "minItems": 1,
        "maxItems": MAX_RANKS,
        "items": rank,
        "description": "[rank][vector][number]",
    }


_hard_schema = _vectors_schema(MAX_HARD_NEGATIVES, 0)
_as_lists = PlainSerializer(
    lambda vectors: None if vectors is None else vectors.nested(), return_type=list[list[list[float]]] | None
)
Pairs = Annotated[Vectors, PlainValidator(_read), _as_lists, WithJsonSchema(_vectors_schema(MAX_QUERIES, 1))]
HardNegatives = Annotated[
    Vectors | None,
    PlainValidator(lambda value: None if value is None else _read(value)),
    _as_lists,
    WithJsonSchema({"anyOf": [_hard_schema, {"type": "null"}]}),
]
Gradients = Annotated[Vectors, PlainValidator(_read), _as_lists, WithJsonSchema(_hard_schema)]


def _factor(value: object) -> Fraction | Literal["P"]:
    return "P" if value == "P" else exact(value)


def _divisor(value: object) -> Fraction | Literal["P"]:
    factor = _factor(value)
    if factor != "P" and factor <= 0:
        raise InputError("must be greater than 0", "必须大于 0", code="greater_than")
    return factor


def _factor_json(factor: Fraction | Literal["P"]) -> int | str:
    if not isinstance(factor, Fraction):
        return factor
    return factor.numerator if factor.denominator == 1 else fraction_text(factor)


_as_json = PlainSerializer(_factor_json, when_used="json")
Factor = Annotated[
    Fraction | Literal["P"],
    PlainValidator(_factor),
    _as_json,
    WithJsonSchema({"anyOf": [number_schema(), {"const": "P"}]}),
]
Divisor = Annotated[
    Fraction | Literal["P"],
    PlainValidator(_divisor),
    _as_json,
    WithJsonSchema({"anyOf": [number_schema(exclusiveMinimum=0), {"const": "P"}]}),
]


class Scheme(InputsBase):
    """One way to compute the loss and its gradients over ranks; the module's text says what each word means.

    `normalization`: `local_mean` over the queries of the loss, `P_over_global_count` their sum times P/N, or their
    `sum`. `labels`: the `correct` columns, or `global_query_index`, which takes column i for query i and errs where
    ranks ship hard negatives.
    """

    name: Annotated[str, Field(min_length=1, max_length=100)]
    gather: Gather
    loss: Literal["local", "global"] = "local"
    multiplier: Factor = Fraction(1)
    normalization: Literal["local_mean", "P_over_global_count", "sum"] = "local_mean"
    labels: Literal["correct", "global_query_index"] = "correct"
    reduction: Literal["mean", "sum"] = "mean"
    divide_by: Divisor = Fraction(1)

    @model_validator(mode="after")
    def _can_be_computed(self) -> "Scheme":
        if self.gather == "none" and self.loss == "global":
            en = "loss: with gather none a rank has its own rows only and cannot compute the global loss"
            zh = "loss：gather 为 none 时各 rank 只有自己的行，算不出 global loss"
            raise InputError(en, zh, "loss", "exclusive")
        return self

    @property
    def whole(self) -> bool:
        """Every rank (or chunk) evaluates the loss of all queries."""
        return self.loss == "global" or self.gather == "cached_accumulation"

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


def _named(name: SchemeName, gather: Gather, loss: Literal["local", "global"], multiplier: Factor) -> Scheme:
    return Scheme(name=name, gather=gather, loss=loss, multiplier=multiplier)


NAMED_SCHEMES = (
    _named("local_loss_gather_with_grad", "grad_sum", "local", Fraction(1)),
    _named("local_loss_remote_detached", "detach_keep_local", "local", Fraction(1)),
    _named("global_loss_gather_with_grad", "grad_sum", "global", Fraction(1)),
    _named("global_loss_remote_detached", "detach_keep_local", "global", Fraction(1)),
    _named("global_loss_remote_detached_times_P", "detach_keep_local", "global", "P"),
    _named("local_loss_remote_detached_times_P", "detach_keep_local", "local", "P"),
    _named("local_negatives_only", "none", "local", Fraction(1)),
    _named("local_loss_gather_with_grad_times_P", "grad_sum", "local", "P"),
)
_REFERENCE = Scheme(name="reference", gather="grad_sum", loss="global")
"""Every rank evaluates the whole loss with all vectors as variables: the mean over ranks is L itself."""

DEFAULT_TAU = Fraction(1)


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
    schemes: list[Scheme] = Field(default=list(NAMED_SCHEMES), min_length=1, max_length=MAX_SCHEMES)

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
        for name, vectors in self.vectors.items():
            yield from _misfits(name, vectors, self.q)
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
            return _float(1 / (DEFAULT_TAU if self.tau is None else self.tau))
        return math.exp(min(float(self.logit_scale_log), 709.0))

    @property
    def scale_field(self) -> str:
        """The field that the scale comes from."""
        return "tau" if self.logit_scale_log is None else "logit_scale_log"


def _misfits(name: str, vectors: Vectors, q: Vectors) -> Iterator[InputError]:
    limit = MAX_HARD_NEGATIVES if name == "hard_negatives" else MAX_QUERIES
    if len(vectors.array) > limit:
        yield InputError(f"{name} has more than {limit:,} vectors", f"{name} 超过 {limit:,} 个向量", name, "too_long")
    if vectors.dimensions > MAX_DIMENSIONS:
        en, zh = f"{name} has more than {MAX_DIMENSIONS} dimensions", f"{name} 超过 {MAX_DIMENSIONS} 维"
        yield InputError(en, zh, name, "too_long")
    if len(vectors) != len(q):
        en = f"{name} has {len(vectors)} ranks, q has {len(q)}"
        yield InputError(en, f"{name} 有 {len(vectors)} 个 rank，q 有 {len(q)} 个", name, "shape_mismatch")
    if len(vectors.array) and vectors.dimensions != q.dimensions:
        en = f"{name} has {vectors.dimensions} dimensions, q has {q.dimensions}"
        yield InputError(en, f"{name} 是 {vectors.dimensions} 维，q 是 {q.dimensions} 维", name, "shape_mismatch")


def _float(value: Fraction) -> float:
    """inf where float64 cannot hold it."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


class Derivatives(ResultBase):
    """Gradients after the reduction, nested like the inputs."""

    grad_q: Gradients
    grad_d: Gradients
    grad_h: Gradients | None = Field(default=None, exclude_if=lambda value: value is None)
    grad_wq: float
    grad_wd: float
    grad_wq_per_dim: list[float]
    grad_wd_per_dim: list[float]
    grad_log_scale: float


class Reference(Derivatives):
    """The full objective and its derivatives."""

    loss: float


class SchemeResult(Derivatives):
    """What one scheme gives. `matches_reference` speaks of the gradients of all vectors, not of the log scale's."""

    rank_losses: list[float]
    mean_rank_loss: float
    max_abs_diff_grad_q: float
    max_abs_diff_grad_d: float
    max_abs_diff_grad_h: float | None = Field(default=None, exclude_if=lambda value: value is None)
    matches_reference: bool
    log_scale_matches_reference: bool


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
                rows=[row for name, result in results.items() for row in _gradient_rows(name, result)],
            ),
        ]


def _gradient_rows(name: str, result: Derivatives) -> Iterator[tuple[Any, ...]]:
    for field in ("grad_q", "grad_d", "grad_h"):
        vectors: Vectors | None = getattr(result, field)
        for r, rank in enumerate([] if vectors is None else vectors.nested()):
            for i, row in enumerate(rank):
                yield (name, field, r, i, *row)


@dataclass(frozen=True)
class _Setting:
    """The vectors as the logits see them (of unit length under cosine), and where each lies among the candidates."""

    inputs: Inputs
    q: Array
    d: Array
    h: Array
    lengths: dict[str, Array] | None
    """‖v‖ of the vectors as given, by "q", "d", "h"; None without normalisation."""

    @classmethod
    def of(cls, inputs: Inputs) -> "_Setting":
        hard = inputs.hard_negatives
        h = hard.array if hard is not None and len(hard.array) else np.empty((0, inputs.q.dimensions))
        if inputs.similarity == "dot":
            return cls(inputs, inputs.q.array, inputs.d.array, h, None)
        q, d = inputs.q.array, inputs.d.array
        return cls(inputs, units(q), units(d), units(h), {"q": norms(q), "d": norms(d), "h": norms(h)})

    @cached_property
    def scale(self) -> float:
        return self.inputs.scale

    @property
    def ranks(self) -> int:
        return len(self.inputs.q)

    @cached_property
    def counts(self) -> Indices:
        return np.array(self.inputs.q.counts, dtype=np.intp)

    @cached_property
    def hard_counts(self) -> Indices:
        hard = self.inputs.hard_negatives
        return np.zeros_like(self.counts) if hard is None else np.array(hard.counts, dtype=np.intp)

    @cached_property
    def document_columns(self) -> Indices:
        """The column of each document: those of a rank come before its hard negatives."""
        return np.arange(len(self.d)) + np.repeat(np.cumsum(self.hard_counts) - self.hard_counts, self.counts)

    @cached_property
    def hard_columns(self) -> Indices:
        return np.arange(len(self.h)) + np.repeat(np.cumsum(self.counts), self.hard_counts)

    @cached_property
    def candidates(self) -> Array:
        if not len(self.h):
            return self.d
        table = np.empty((len(self.d) + len(self.h), self.d.shape[1]))
        table[self.document_columns], table[self.hard_columns] = self.d, self.h
        return table

    @property
    def directions(self) -> dict[str, float]:
        """Which tables the objective is made of, and their shares."""
        return {"q2d": 1.0} if self.inputs.direction == "q2d" else {"q2d": 0.5, "d2q": 0.5}

    def sides(self, direction: str) -> tuple[Array, Array, Ranks]:
        """The rows and the columns of a table, and who owns them."""
        if direction == "q2d":
            return self.q, self.candidates, Ranks(self.counts, self.counts + self.hard_counts)
        return self.d, self.q, Ranks(self.counts, self.counts)

    def by_rank(self, values: Array) -> Array:
        """Sums over each rank's queries (or documents)."""
        sums: Array = np.add.reduceat(values, np.cumsum(self.counts) - self.counts)
        return sums

    def to_given(self, name: str, gradient: Array) -> Array:
        """The gradient of the vectors as given, from that of the vectors as the logits see them."""
        if self.lengths is None:
            return gradient
        return through_unit(gradient, getattr(self, name), self.lengths[name][:, None])

    def beyond_range(self, index: int | None = None) -> InputError:
        """What to say when a result, or one of the scheme with this number, is beyond float64."""
        scheme = _REFERENCE if index is None else self.inputs.schemes[index]
        if index is not None and not {scheme.multiplier, scheme.divide_by} <= {"P", Fraction(1)}:
            en = f"scheme “{scheme.name}” leads to results beyond float64's range: take smaller factors or a larger τ"
            zh = f"方案“{scheme.name}”的结果超出 float64 的范围，请取更小的系数或更大的 τ"
            return InputError(en, zh, ("schemes", index), "number_range")
        field = self.inputs.scale_field
        en = f"{field}: with these vectors the logits or the gradients are beyond float64's range; take a larger τ"
        zh = f"{field}：这组向量使 logit 或梯度超出 float64 的范围，请取更大的 τ"
        return InputError(en, zh, field, "number_range")


class _Tables:
    """The tables that a set of schemes needs, each summed once."""

    def __init__(self, setting: _Setting, schemes: Sequence[Scheme]) -> None:
        self.setting = setting
        self._sums: dict[tuple[str, str], Sums] = {}
        apart = [scheme for scheme in schemes if not scheme.whole and setting.ranks > 1]
        self._own = any(scheme.gather in ("detach_keep_local", "detach_all_docs") for scheme in apart)
        ragged = len(set(setting.inputs.q.counts)) > 1
        mean_of_means = any(s.gather == "grad_sum" and s.normalization == "local_mean" for s in apart)
        self._weights = [np.repeat(1.0 / setting.counts, setting.counts)] if ragged and mean_of_means else []

    def of(self, direction: str, scheme: Scheme) -> Sums:
        """Sums of the table that the scheme's loss is computed from."""
        kind = "gathered"
        if scheme.gather == "none" and self.setting.ranks > 1:
            kind = "local"
        elif scheme.labels == "global_query_index" and direction == "q2d" and len(self.setting.h):
            kind = "misread"
        if (direction, kind) not in self._sums:
            self._sums[direction, kind] = self._sum(direction, kind)
        return self._sums[direction, kind]

    def _sum(self, direction: str, kind: str) -> Sums:
        setting = self.setting
        rows, columns, ranks = setting.sides(direction)
        if kind == "local":
            return local(rows, columns, setting.scale, ranks)
        right = setting.document_columns if direction == "q2d" and kind == "gathered" else np.arange(len(rows))
        return gathered(rows, columns, right, setting.scale, self._weights, ranks if self._own else None)


@dataclass(frozen=True)
class _Outcome:
    """A scheme's losses and gradients, with respect to the vectors as given."""

    rank_losses: Array
    q: Array
    d: Array
    h: Array
    log_scale: float

    def finite(self) -> bool:
        arrays = (self.rank_losses, self.q, self.d, self.h)
        return math.isfinite(self.log_scale) and all(bool(np.isfinite(array).all()) for array in arrays)


def _outcome(setting: _Setting, tables: _Tables, scheme: Scheme) -> _Outcome:
    q, candidates = np.zeros_like(setting.q), np.zeros_like(setting.candidates)
    losses, log_scale = np.zeros(setting.ranks), 0.0
    documents = setting.document_columns
    for direction, share in setting.directions.items():
        flow = _flow(setting, direction, tables.of(direction, scheme), scheme)
        if direction == "q2d":
            q += share * flow.rows
            candidates += share * flow.columns
        else:
            candidates[documents] += share * flow.rows
            q += share * flow.columns
        losses += share * flow.rank_losses
        log_scale += share * flow.log_scale
    if scheme.gather == "detach_all_docs":
        candidates[:] = 0.0
    return _Outcome(
        losses,
        setting.to_given("q", q),
        setting.to_given("d", candidates[documents]),
        setting.to_given("h", candidates[setting.hard_columns]),
        log_scale,
    )


@dataclass(frozen=True)
class _Flow:
    """What reaches the owners of a table's rows and columns, and the log scale, after the reduction."""

    rows: Array
    columns: Array
    log_scale: float
    rank_losses: Array


def _flow(setting: _Setting, direction: str, sums: Sums, scheme: Scheme) -> _Flow:
    ranks, count, sizes = setting.ranks, len(setting.q), setting.inputs.q.counts
    if scheme.whole:
        return _whole(setting, sums, scheme, scheme.rate(count, count, ranks))
    exact_rates = {size: scheme.rate(size, count, ranks) for size in set(sizes)}
    divisor = scheme.reduced_by(ranks)
    rates, reduced = (np.array([_float(exact_rates[size] / by) for size in sizes]) for by in (1, divisor))
    if scheme.gather != "grad_sum":
        own = sums.column_gradient[0] if sums.own_gradient is None else sums.own_gradient
        columns = np.repeat(reduced, setting.sides(direction)[2].columns)[:, None] * own
    elif len(set(exact_rates.values())) == 1:
        columns = reduced[0] * sums.column_gradient[0]
    else:  # the rates are those of means, and the table has its sums with the weights 1/B_r
        columns = _float(scheme.rate(1, count, ranks) / divisor) * sums.column_gradient[1]
    return _Flow(
        setting.scale * (np.repeat(reduced, setting.counts)[:, None] * sums.row_gradient),
        setting.scale * columns,
        float(reduced @ setting.by_rank(sums.scale_gradient)),
        rates * setting.by_rank(sums.loss),
    )


def _whole(setting: _Setting, sums: Sums, scheme: Scheme, rate: Fraction) -> _Flow:
    """The loss of every rank is `rate` times the sum over all queries."""
    ranks, divisor = setting.ranks, scheme.reduced_by(setting.ranks)
    reached_by = ranks if scheme.gather == "grad_sum" else 1
    factor = setting.scale * _float(reached_by * rate / divisor)
    return _Flow(
        factor * sums.row_gradient,
        factor * sums.column_gradient[0],
        _float(ranks * rate / divisor) * float(sums.scale_gradient.sum()),
        np.full(ranks, _float(rate) * sums.loss.sum()),
    )


class _Judge:
    """Compares with the reference: equal within 1e-8 of its largest entry or the rounding of terms that cancel.

    Both are proportional to the gradients, so that the verdict does not depend on the unit of anything.
    """

    def __init__(self, setting: _Setting, tables: _Tables, reference: _Outcome) -> None:
        self.reference = reference
        terms = {"q": np.zeros(len(setting.q)), "c": np.zeros(len(setting.candidates))}
        largest_q, largest_c = (float(norms(vectors).max()) for vectors in (setting.q, setting.candidates))
        self.log_scale_terms = 0.0
        for direction, share in setting.directions.items():
            sums = tables.of(direction, _REFERENCE)
            weight = share * setting.scale / len(setting.q)
            if direction == "q2d":
                terms["q"] += weight * sums.row_magnitude * largest_c
                terms["c"] += weight * sums.column_magnitude
            else:
                terms["c"][setting.document_columns] += weight * sums.row_magnitude * largest_q
                terms["q"] += weight * sums.column_magnitude
            self.log_scale_terms += share * float(sums.scale_magnitude.mean())
        apart = {"q": terms["q"], "d": terms["c"][setting.document_columns], "h": terms["c"][setting.hard_columns]}
        if setting.lengths is not None:
            apart = {name: values / setting.lengths[name] for name, values in apart.items()}
        self.terms = {name: _largest(values) for name, values in apart.items()}
        # probabilities inherit the rounding of the logits, which grows with them
        logit = setting.scale * largest_q * largest_c
        self.rounding = min(1e-12 + 4.0 * float(np.finfo(np.float64).eps) * logit, 1e-6)

    def finite(self) -> bool:
        return all(map(math.isfinite, (*self.terms.values(), self.log_scale_terms)))

    def difference(self, outcome: _Outcome, name: str) -> float:
        return _largest(getattr(outcome, name) - getattr(self.reference, name))

    def matches(self, differences: dict[str, float]) -> bool:
        return all(
            difference <= 1e-8 * _largest(getattr(self.reference, name)) + self.rounding * self.terms[name]
            for name, difference in differences.items()
        )

    def log_scale_matches(self, value: float) -> bool:
        right = self.reference.log_scale
        return abs(value - right) <= 1e-8 * abs(right) + self.rounding * self.log_scale_terms


def _largest(values: Array) -> float:
    return float(np.abs(values).max(initial=0.0))


def compute(inputs: Inputs) -> Result:
    """The reference and every scheme. InputError where float64 cannot hold the logits or a result."""
    with np.errstate(all="ignore"):
        setting = _Setting.of(inputs)
        tables = _Tables(setting, inputs.schemes)
        reference = _outcome(setting, tables, _REFERENCE)
        judge = _Judge(setting, tables, reference)
        fields = _derivatives(setting, reference)
        if fields is None or not judge.finite():
            raise setting.beyond_range()
        return Result(
            reference=Reference(loss=float(reference.rank_losses[0]) + 0.0, **fields),
            schemes={
                scheme.name: _scheme_result(setting, judge, i, _outcome(setting, tables, scheme))
                for i, scheme in enumerate(inputs.schemes)
            },
        )


def _scheme_result(setting: _Setting, judge: _Judge, index: int, outcome: _Outcome) -> SchemeResult:
    fields = _derivatives(setting, outcome)
    if fields is None:
        raise setting.beyond_range(index)
    names = ("q", "d") if setting.inputs.hard_negatives is None else ("q", "d", "h")
    differences = {name: judge.difference(outcome, name) for name in names}
    return SchemeResult(
        **fields,
        rank_losses=_plain(outcome.rank_losses),
        mean_rank_loss=_mean(outcome.rank_losses),
        max_abs_diff_grad_q=differences["q"],
        max_abs_diff_grad_d=differences["d"],
        max_abs_diff_grad_h=differences.get("h"),
        matches_reference=judge.matches(differences),
        log_scale_matches_reference=judge.log_scale_matches(outcome.log_scale),
    )


def _derivatives(setting: _Setting, outcome: _Outcome) -> dict[str, Any] | None:
    """The fields of Derivatives; None where float64 cannot hold one."""
    inputs, hard = setting.inputs, setting.inputs.hard_negatives
    wq, wd = (np.einsum("ij,ij->j", g, v.array) for g, v in ((outcome.q, inputs.q), (outcome.d, inputs.d)))
    if hard is not None and len(outcome.h):
        wd = wd + np.einsum("ij,ij->j", outcome.h, hard.array)
    # a factor common to all vectors does not change a cosine
    totals = [0.0, 0.0] if inputs.similarity == "cosine" else [float(weights.sum()) for weights in (wq, wd)]
    if not (outcome.finite() and np.isfinite([*wq, *wd, *totals]).all()):
        return None
    return {
        "grad_q": Vectors(outcome.q + 0.0, inputs.q.counts),
        "grad_d": Vectors(outcome.d + 0.0, inputs.d.counts),
        "grad_h": None if hard is None else Vectors(outcome.h + 0.0, hard.counts),
        "grad_wq": totals[0] + 0.0,
        "grad_wd": totals[1] + 0.0,
        "grad_wq_per_dim": _plain(wq),
        "grad_wd_per_dim": _plain(wd),
        "grad_log_scale": outcome.log_scale + 0.0,
    }


def _plain(values: Array) -> list[float]:
    """As a list, without −0.0."""
    numbers: list[float] = (values + 0.0).tolist()
    return numbers


def _mean(losses: Array) -> float:
    largest = _largest(losses)  # the sum of losses near float64's limit would be beyond it
    return largest * float((losses / largest).mean()) if largest else 0.0


def _sole(value: object) -> object:
    """FastAPI hands over the text of a field with rows as a list of one text."""
    return value[0] if isinstance(value, list | tuple) and len(value) == 1 and isinstance(value[0], str) else value


Matrix = Annotated[
    Rows,
    BeforeValidator(lambda value: rows_of(_sole(value))),
    PlainSerializer(lambda rows: ";".join(",".join(map(fraction_text, row)) for row in rows), return_type=str),
    WithJsonSchema({"type": "string", "description": "one vector a row; `;` between rows, `,` between dimensions"}),
]


def _rows_per_rank(value: object) -> tuple[int, ...] | None:
    """`2,1,3`, or None for a blank: one row a rank."""
    value = blank_to_none(_sole(value))
    if value is None:
        return None
    sizes = [size for row in rows_of(value if isinstance(value, str) else [value]) for size in row]
    if any(size.denominator != 1 or not 1 <= size <= MAX_QUERIES for size in sizes):
        en = "must be whole numbers of rows, 1 or more, such as 2,1,3"
        raise InputError(en, "应是各 rank 的行数，须为正整数，例如 2,1,3", code="int_type")
    return tuple(map(int, sizes))


RowsPerRank = Annotated[
    tuple[int, ...] | None,
    PlainValidator(_rows_per_rank),
    PlainSerializer(lambda sizes: ",".join(map(str, sizes or ())), return_type=str),
    WithJsonSchema({"type": "string", "description": "rows of each rank, such as 2,1,3; blank: one each"}),
]


class Query(QueryBase):
    """The panel's state: queries and documents, one a row, dealt to ranks in order."""

    q: Matrix = Field(default="1;2", validate_default=True)
    d: Matrix = Field(default="1;-1", validate_default=True)
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
        q, d = (_vectors(name, getattr(self, name), counts) for name in ("q", "d"))
        try:
            return Inputs.model_validate(
                {"q": q, "d": d, "tau": self.tau, "similarity": self.similarity, "direction": self.direction}
            )
        except ValidationError as error:  # the fields are read already: what is left is how they fit together
            raise error.errors()[0]["ctx"]["error"] from None


def _vectors(name: str, rows: Rows, counts: Sequence[int]) -> Vectors:
    for i, row in enumerate(rows):
        if len(row) != len(rows[0]):
            en = f"{name}: row {i + 1} has {len(row)} dimensions, row 1 has {len(rows[0])}"
            zh = f"{name}：第 {i + 1} 行有 {len(row)} 维，第 1 行有 {len(rows[0])} 维"
            raise InputError(en, zh, name, "shape_mismatch")
    return Vectors(np.array(rows, dtype=np.float64), counts)


class RankRow(ResultBase):
    """A rank before the reduction: its own loss, and the gradients of its copies of the shared weights."""

    name: str
    loss: float
    grad_wq: float
    grad_wd: float


class TableRow(ResultBase):
    """One query of the full objective: its logits and probabilities over all documents."""

    query: int
    logits: list[float]
    probabilities: list[float]


Component = float | list[float]
"""A vector; a plain number where there is one dimension."""


class Document(ResultBase):
    """∂/∂d_j: what the chosen scheme keeps, and the full objective's."""

    name: str
    kept: Component
    full: Component


class View(Result):
    """What the panel shows.

    `contributions[j][i]` is the part of the full ∂L/∂d_j that runs through logit_ij, which query i sends: 1/N (and,
    with two directions, the halves) inside. `table`, `contributions` and `documents` are null, with the reason, for
    states too large to list.
    """

    selected: SchemeName
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


def panel(query: Query) -> View:
    """The state of a panel: `compute`'s result, and from the same tables what each query sends."""
    inputs = query.inputs()
    result = compute(inputs)
    current = result.schemes[query.scheme]
    scheme = next(scheme for scheme in inputs.schemes if scheme.name == query.scheme)
    with np.errstate(all="ignore"):
        setting = _Setting.of(inputs)
        listed = len(setting.q) <= MAX_LISTED_QUERIES and len(setting.q) * setting.q.size <= MAX_LISTED_PARTS
        table, parts = _listed(setting) if listed else (None, None)
        return View(
            reference=result.reference,
            schemes=result.schemes,
            selected=query.scheme,
            current=current,
            ranks=_rank_rows(setting, scheme, current),
            table=table,
            contributions=parts,
            documents=_documents(result.reference, current) if listed else None,
            reason=None if listed else "too_large",
        )


def _rank_rows(setting: _Setting, scheme: Scheme, current: SchemeResult) -> list[RankRow]:
    """Before the reduction: what reached the rank's own vectors, times what the reduction divides by."""
    weights = []
    for gradient, vectors in ((current.grad_q, setting.inputs.q), (current.grad_d, setting.inputs.d)):
        sent = setting.by_rank(np.sum(gradient.array * vectors.array, axis=1)) * scheme.reduced_by(setting.ranks)
        weights.append(np.zeros_like(sent) if setting.inputs.similarity == "cosine" else sent)
    if not np.isfinite(weights).all():
        raise setting.beyond_range()
    rows = zip(current.rank_losses, *map(_plain, weights), strict=True)
    return [RankRow(name=f"rank {r}", loss=loss, grad_wq=wq, grad_wd=wd) for r, (loss, wq, wd) in enumerate(rows)]


def _listed(setting: _Setting) -> tuple[list[TableRow], list[list[Component]]]:
    """Logits and probabilities of every query, and what it sends to every document. There are no hard negatives."""
    labels = np.arange(len(setting.q))
    similarities = setting.q @ setting.d.T
    block = Block.of(similarities.copy(), labels, setting.scale)
    through = setting.directions["q2d"] * block.derivative()
    if "d2q" in setting.directions:
        back = Block.of(similarities.T.copy(), labels, setting.scale)
        through = through + setting.directions["d2q"] * back.derivative().T
    logits = setting.scale * similarities + 0.0
    parts = (setting.scale / len(labels) * through.T)[:, :, None] * setting.q
    if setting.lengths is not None:
        parts = through_unit(parts, setting.d[:, None, :], setting.lengths["d"][:, None, None])
    if not (np.isfinite(logits).all() and np.isfinite(parts).all()):
        raise setting.beyond_range()
    rows = zip(logits.tolist(), block.probabilities(labels).tolist(), strict=True)
    table = [TableRow(query=i, logits=row, probabilities=p) for i, (row, p) in enumerate(rows)]
    return table, [[_component(part) for part in sent] for sent in (parts + 0.0).tolist()]


def _documents(reference: Reference, current: SchemeResult) -> list[Document]:
    pairs = zip(current.grad_d.array.tolist(), reference.grad_d.array.tolist(), strict=True)
    return [
        Document(name=f"d{j}", kept=_component(kept), full=_component(full)) for j, (kept, full) in enumerate(pairs)
    ]


def _component(vector: list[float]) -> Component:
    return vector[0] if len(vector) == 1 else vector
