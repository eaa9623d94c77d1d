"""How many labels a window has, by the right rule and by the usual wrong ones, and what that does to the gradient.

Words and symbols: `cells` are [rank][microstep][row]; n_rk is the number of labels that the loss of cell (r, k) sums
over, N = sum n_rk. `rows` says what a row is, `rules` what each rule counts; m_rk and M = sum m_rk are the
counts by a wrong rule. A loss sums over the labels that it sees whatever was counted beside it, so that

    every label's gradient divided by M instead of N    all of it by one `factor` N/M
    each cell's sum divided by its own m_rk             cell by cell, `local_factors` n_rk/m_rk
    each cell's mean weighed with m_rk/M                cell by cell, `weighted_factors` (m_rk/M)·(N/n_rk)

By the definition of a mean the first is right in direction always, the other two only where m_rk is proportional to
n_rk. A cell without labels has no factors. Counts are exact; factors are exact fractions and their nearest float64.
"""

from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from itertools import accumulate, count, islice
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, model_validator

from samestep.app.calculators.label_count.rows import Floats, Ints, Length, PadId, PadTo, Row, Runs, lay_out
from samestep.app.calculators.label_count.rules import RULES, SchemeName, counts, stretches
from samestep.app.calculators.label_count.texts import LabelsText, LengthsText, Nested, PromptsText
from samestep.app.contract import models
from samestep.app.contract.errors import InputError
from samestep.app.contract.fields import JSON, OrBlank
from samestep.app.contract.limits import MAX_LISTED_CELLS, MAX_RANKS
from samestep.app.contract.numbers import fraction_text
from samestep.app.mathematics.ragged import cut

MAX_ROWS = 100_000
_RIGHT: SchemeName = "after_shift"
SHOWN_ROWS = 8
"""So many rows are drawn."""

What = Literal["start", "label", "unlabelled", "cut", "padding"]
Kind = Literal["same", "scaled", "distorted", "undefined"]


class Inputs(models.Inputs):
    """The rows of every cell. `max_length` cuts rows that have none of their own, `pad_to` pads those that do not say
    how; `boundaries` is what the loss does with the first label of a packed sequence; `pad_id` is padding's token id.
    """

    cells: Annotated[list[list[list[Row]]], JSON] = Field(
        min_length=1, max_length=MAX_RANKS, examples=[[[[{"lengths": [6]}]]]]
    )
    max_length: Annotated[Length | None, OrBlank] = None
    pad_to: PadTo = "longest"
    boundaries: Literal["masked", "crossing"] = "masked"
    pad_id: Annotated[PadId | None, OrBlank] = None

    @model_validator(mode="after")
    def _can_be_laid_out(self) -> "Inputs":
        if self.pad_to == "max_length" and self.max_length is None:
            en, zh = "is needed for padding to it", "：要填充到它，就得给出它"
            raise InputError(en, zh, field="max_length", code="missing")
        if sum(len(cell) for rank in self.cells for cell in rank) > MAX_ROWS:
            en, zh = f"hold more than {MAX_ROWS:,} rows", f"超过 {MAX_ROWS:,} 行"
            raise InputError(en, zh, field="cells", code="too_long")
        return self


class Query(models.Query):
    """The panel: lengths and prompts in `texts`'s grammar, or label lists in their place, and the rule to look at.

    One prompt stands for all sequences.
    """

    lengths: LengthsText = Field(default="6 4,9;5+3,8", validate_default=True)
    prompts: PromptsText = Field(default="0 0,3;0+0,2", validate_default=True)
    labels: LabelsText = Field(default=None, validate_default=True)
    max_length: Annotated[Length | None, OrBlank] = 8
    pad_to: PadTo = "longest"
    boundaries: Literal["masked", "crossing"] = "masked"
    scheme: SchemeName = "before_shift"

    def inputs(self) -> Inputs:
        """The body that these fields stand for."""
        cells = self._labels() if self.labels is not None else self._lengths()
        return Inputs(cells=cells, max_length=self.max_length, pad_to=self.pad_to, boundaries=self.boundaries)

    def _labels(self) -> list[list[list[Row]]]:
        def row(sequences: tuple[tuple[int, ...], ...]) -> Row:
            starts = [0, *accumulate(map(len, sequences[:-1]))]
            return Row(labels=[label for one in sequences for label in one], starts=starts[: len(sequences)])

        return [[[row(one) for one in cell] for cell in rank] for rank in self.labels or ()]

    def _lengths(self) -> list[list[list[Row]]]:
        if self.lengths is None:
            en, zh = "is blank: lengths are needed, or labels", "为空：要有长度，或者标签"
            raise InputError(en, zh, field="lengths", code="blank")
        shape = _shape(self.lengths)
        if _shape(self.prompts) not in ([[[1]]], shape):
            en = "need one number, or one for each sequence, laid out like lengths"
            zh = "应为一个数，或与长度同样排列、一一对应"
            raise InputError(en, zh, field="prompts", code="shape_mismatch")
        if _shape(self.prompts) != shape:
            ((((prompt,),),),) = self.prompts
            return [[[Row(lengths=row, prompts=(prompt,)) for row in cell] for cell in rank] for rank in self.lengths]
        return [
            [
                [Row(lengths=row, prompts=masked) for row, masked in zip(cell, prompts, strict=True)]
                for cell, prompts in zip(rank, of_rank, strict=True)
            ]
            for rank, of_rank in zip(self.lengths, self.prompts, strict=True)
        ]


def _shape(nested: Nested[int]) -> list[list[list[int]]]:
    return [[[len(row) for row in cell] for cell in rank] for rank in nested]


class Count(models.Result):
    """The counts by one rule, beside those of the loss.

    `kind` says what dividing every cell by its own count does: nothing (`same`), one factor (`scaled`), another
    direction (`distorted`); `undefined` where a sum is zero. `spread` is the largest of the cells' factors over the
    smallest. Lists are null above MAX_LISTED_CELLS cells, entries null in cells that have no factor.
    """

    N: int
    counts: list[list[int]] | None
    difference: int
    kind: Kind
    defined: bool
    reason: models.Reason | None
    factor: str | None
    factor_value: float | None
    local_factors: list[list[float | None]] | None
    weighted_factors: list[list[float | None]] | None
    spread: float | None


class Result(models.Result):
    """The right count and all wrong ones. Positions are those of the padded batch; `tokens` include `cut` ones."""

    N: int
    counts: list[list[int]] | None
    empty_cells: int
    rows: int
    tokens: int
    cut: int
    padding: int
    positions: int
    boundaries: Literal["masked", "crossing"]
    schemes: dict[SchemeName, Count]

    def tables(self) -> list[models.Table]:
        """One row a rule, then one a cell and rule."""
        rules = [(name, c.N, c.difference, c.factor, c.factor_value, c.kind, c.spread) for name, c in self._counts()]
        cells = [
            (name, r, k, n, local, weighted)
            for name, c in self._counts()
            if c.counts is not None and c.local_factors is not None and c.weighted_factors is not None
            for r, rows in enumerate(zip(c.counts, c.local_factors, c.weighted_factors, strict=True))
            for k, (n, local, weighted) in enumerate(zip(*rows, strict=True))
        ]
        header = ("scheme", "N", "difference", "factor", "factor_value", "kind", "spread")
        return [
            models.Table(header=header, rows=rules),
            models.Table(header=("scheme", "rank", "microstep", "n", "local_factor", "weighted_factor"), rows=cells),
        ]

    def _counts(self) -> Iterable[tuple[SchemeName, Count]]:
        return self.schemes.items()


class Span(models.Result):
    """Positions [begin, end) of a drawn row, and what they are; `start` is the first of a sequence."""

    what: What
    begin: int
    end: int


class Typed(models.Result):
    """A sequence as it was typed, in a row that is given by lengths: its place in the microbatch, where it begins in
    the row, its length and that of its prompt."""

    number: int
    begin: int
    length: int
    prompt: int


class Strip(models.Result):
    """One drawn row: what its positions are, which of them the loss sees, and which the selected rule counts."""

    rank: int
    microstep: int
    length: int
    typed: list[Typed]
    spans: list[Span]
    seen: list[tuple[int, int]]
    counted: list[tuple[int, int]]


class View(Result):
    """What the panel shows: the selected rule, and the first rows."""

    selected: SchemeName
    current: Count
    strips: list[Strip]
    max_length: int | None


def compute(inputs: Inputs) -> Result:
    """Count by every rule."""
    return _result(inputs, _runs(inputs))


def present(inputs: Inputs, scheme: str | None = None) -> View:
    """What is shown of a body: one rule beside the right one, `before_shift` unless `scheme` names another."""
    runs = _runs(inputs)
    result = _result(inputs, runs)
    selected = models.chosen(result.schemes, "before_shift" if scheme is None else scheme)
    strips = _strips(inputs, runs, selected)
    return View(
        **dict(result),
        selected=selected,
        current=result.schemes[selected],
        strips=strips,
        max_length=inputs.max_length,
    )


def _runs(inputs: Inputs) -> Runs:
    return lay_out(inputs.cells, inputs.max_length, inputs.pad_to, inputs.pad_id)


def _result(inputs: Inputs, runs: Runs) -> Result:
    crossing = inputs.boundaries == "crossing"
    found = {name: counts(rule, runs, crossing) for name, rule in RULES.items()}
    right, sizes = found[_RIGHT], [len(rank) for rank in inputs.cells]
    listed = runs.cells <= MAX_LISTED_CELLS
    return Result(
        N=int(right.sum()),
        counts=cut(right.tolist(), sizes) if listed else None,
        empty_cells=int((right == 0).sum()),
        rows=len(runs.padding),
        tokens=int(runs.tokens.sum()),
        cut=int(runs.cut.sum()),
        padding=int(runs.padding.sum()),
        positions=int((runs.tokens - runs.cut + runs.padding).sum()),
        boundaries=inputs.boundaries,
        schemes={name: _count(right, wrong, sizes if listed else None) for name, wrong in found.items()},
    )


def _count(right: Ints, wrong: Ints, sizes: Sequence[int] | None) -> Count:
    """`sizes`: cells of every rank, None where nothing is listed."""
    total, counted = int(right.sum()), int(wrong.sum())
    filled = (right > 0) & (wrong > 0)
    local = np.divide(right, wrong, out=np.full(len(right), np.nan), where=filled)
    weighted = np.divide(counted and total / counted, local, out=np.full(len(right), np.nan), where=filled)
    factor = Fraction(total, counted) if total and counted else None
    return Count(
        N=counted,
        counts=None if sizes is None else cut(wrong.tolist(), sizes),
        difference=counted - total,
        kind=_kind(right, wrong),
        defined=factor is not None,
        reason=None if factor is not None else "zero_count",
        factor=None if factor is None else fraction_text(factor),
        factor_value=None if factor is None else float(factor),
        local_factors=None if sizes is None else cut(_or_none(local), sizes),
        weighted_factors=None if sizes is None else cut(_or_none(weighted), sizes),
        spread=float(local[filled].max() / local[filled].min()) if filled.any() else None,
    )


def _kind(right: Ints, wrong: Ints) -> Kind:
    if (right == wrong).all():
        return "same" if right.any() else "undefined"
    total, counted = int(right.sum()), int(wrong.sum())
    if not total or not counted:
        return "undefined"
    exact = [n.astype(object) for n in (right, wrong)]  # products of two counts may leave int64
    return "scaled" if (exact[0] * counted == exact[1] * total).all() else "distorted"


def _or_none(factors: Floats) -> list[float | None]:
    """A factor a cell, None where there is none (NaN)."""
    found = factors.astype(object)
    found[np.isnan(factors)] = None
    listed: list[float | None] = found.tolist()
    return listed


def _strips(inputs: Inputs, runs: Runs, scheme: SchemeName) -> list[Strip]:
    crossing = inputs.boundaries == "crossing"
    seen, counted = (stretches(RULES[name], runs, crossing, SHOWN_ROWS) for name in (_RIGHT, scheme))
    places = [(r, k) for r, rank in enumerate(inputs.cells) for k in range(len(rank))]
    typed = list(islice((row for rank in inputs.cells for cell in rank for row in _typed(cell)), SHOWN_ROWS))
    strips = []
    for row, (of_loss, of_rule) in enumerate(zip(seen, counted, strict=True)):
        rank, microstep = places[runs.cell_of_row[row]]
        tokens, lost, padding = (int(part[row]) for part in (runs.tokens, runs.cut, runs.padding))
        spans = [span for i in np.flatnonzero(runs.row == row).tolist() for span in _spans(runs, i)]
        spans += [Span(what="padding", begin=tokens - lost, end=tokens - lost + padding)] if padding else []
        length = max(tokens, tokens - lost + padding)
        strips.append(
            Strip(
                rank=rank,
                microstep=microstep,
                length=length,
                typed=typed[row],
                spans=spans,
                seen=of_loss,
                counted=of_rule,
            )
        )
    return strips


def _typed(cell: Sequence[Row]) -> Iterator[list[Typed]]:
    """The sequences of each row of a microbatch, numbered through; none where a row is given by its labels."""
    number = count()
    for row in cell:
        lengths = row.lengths or ()
        prompts = row.prompts if len(row.prompts) == len(lengths) else row.prompts * len(lengths)
        yield [
            Typed(number=next(number), begin=begin, length=length, prompt=min(prompt, length))
            for begin, length, prompt in zip(accumulate(lengths, initial=0), lengths, prompts, strict=False)
        ]


def _spans(runs: Runs, run: int) -> list[Span]:
    """One run as it lies in its row: what is kept of it, and what was cut off."""
    start, begin, end, kept = (int(part[run]) for part in (runs.start, runs.begin, runs.end, runs.kept))
    middle = min(max(kept, begin), end)
    what: What = "label" if runs.labelled[run] else "unlabelled"
    parts: list[tuple[What, int, int]] = [(what, begin, middle), ("cut", middle, end)]
    if begin == 0 and middle > 0:
        parts = [("start", 0, 1), (what, 1, middle), ("cut", middle, end)]
    return [Span(what=name, begin=start + a, end=start + b) for name, a, b in parts if a < b]
