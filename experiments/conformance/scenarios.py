"""The situations that every framework is put into: how many valid labels each rank has in each micro-batch.

Symbols: P processes, K micro-batches per update as configured (`accumulation`), n[r][k] valid labels of rank r in
micro-batch k, N their sum. In a partial last window fewer than K micro-batches exist, K stays what was configured.

Where a micro-batch holds several sequences, which losses of reinforcement learning weigh one by one, `lengths` says how
long each of them is, and n[r][k] is the sum of a cell. In the preference scenarios a label is a pair.
"""

from dataclasses import dataclass
from enum import StrEnum

from samestep.app.evidence.bags import Text

Counts = tuple[tuple[int, ...], ...]
Lengths = tuple[tuple[tuple[int, ...], ...], ...]


class Kind(StrEnum):
    """What is looked at: the coefficient of every token (or pair), state, clipping, a gradient beside that of the whole
    batch (contrastive) or of one process (sharded), or counters beside the updates that were made.
    """

    COEFFICIENTS = "coefficients"
    STATE = "state"
    CLIPPING = "clipping"
    CONTRASTIVE = "contrastive"
    SHARDED = "sharded"
    COUNTERS = "counters"


@dataclass(frozen=True)
class Scenario:
    """`counts[r][k]`: valid labels (or, of a contrastive scenario, pairs) of rank r in micro-batch k.

    `before`: a complete window that runs first, where a framework has to be brought into the situation (a tail needs an
    epoch that it can be the tail of; moments have to be there before an empty window can move anything).
    `lengths[r][k][s]`: of sequence s of a micro-batch, where a micro-batch has several; else a cell is one sequence.
    `generation`: how many micro-batches of a rank are sampled together, where the samples are a model's own; `after`:
    lengths of those that are trained in a later window than this one.
    """

    id: str
    title: Text
    counts: Counts
    accumulation: int = 1
    before: Counts = ()
    kind: Kind = Kind.COEFFICIENTS
    lengths: Lengths = ()
    generation: int = 0
    after: Lengths = ()

    @property
    def sequences(self) -> Lengths:
        """Lengths [r][k][s]; a cell is one sequence unless `lengths` says otherwise."""
        return self.lengths or tuple(tuple((n,) for n in rank) for rank in self.counts)

    @property
    def tail(self) -> bool:
        """Whether the window is a last one that is not full: what holds there need not hold elsewhere."""
        return len(self.counts[0]) < self.accumulation

    def generation_total(self, k: int) -> int:
        """Labels of all ranks that were sampled together with micro-batch k of this window."""
        together = slice(first := k // self.generation * self.generation, first + self.generation)
        later = self.after or ((),) * len(self.counts)
        ranks = ((*mine, *then) for mine, then in zip(self.sequences, later, strict=True))
        return sum(sum(cell) for rank in ranks for cell in rank[together])

    @property
    def total(self) -> int:
        """N, over all ranks and micro-batches."""
        return sum(map(sum, self.counts))


_FIRST: Lengths = (((2, 8), (5, 1)), ((6, 2), (4, 1)))
_SECOND: Lengths = (((3, 3), (7, 4)), ((9, 3), (5, 2)))
_BOTH: Lengths = tuple((*one, *other) for one, other in zip(_FIRST, _SECOND, strict=True))


def _of_sequences(
    id: str, title: Text, lengths: Lengths, accumulation: int, *, generation: int = 0, after: Lengths = ()
) -> Scenario:
    counts = tuple(tuple(map(sum, rank)) for rank in lengths)
    return Scenario(id, title, counts, accumulation, lengths=lengths, generation=generation, after=after)


SCENARIOS: dict[str, Scenario] = {
    scenario.id: scenario
    for scenario in (
        Scenario("A", {"zh": "两卡标签数不等：2｜8", "en": "unequal ranks: 2 | 8 labels"}, ((2,), (8,))),
        Scenario(
            "B",
            {"zh": "不等且累积两个微批：2, 8｜5, 1", "en": "unequal with accumulation: 2, 8 | 5, 1"},
            ((2, 8), (5, 1)),
            accumulation=2,
        ),
        Scenario("C", {"zh": "一张卡没有标签：0｜8", "en": "an empty rank: 0 | 8"}, ((0,), (8,))),
        Scenario(
            "D",
            {
                "zh": "不满的最后一窗：累积 2，只有一个微批 4｜3",
                "en": "a partial last window: 4 | 3, one of 2 micro-batches",
            },
            ((4,), (3,)),
            accumulation=2,
            before=((2, 8), (5, 1)),
        ),
        Scenario(
            "E",
            {"zh": "一个微批没有标签：2, 0｜5, 1", "en": "one empty micro-batch: 2, 0 | 5, 1"},
            ((2, 0), (5, 1)),
            accumulation=2,
        ),
        Scenario(
            "F",
            {"zh": "整个窗口没有标签：0｜0（AdamW）", "en": "a window without labels: 0 | 0 (AdamW)"},
            ((0,), (0,)),
            before=((2,), (8,)),
            kind=Kind.STATE,
        ),
        Scenario(
            "clip",
            {"zh": "裁剪梯度范数：2｜8", "en": "clipping the gradient norm: 2 | 8 labels"},
            ((2,), (8,)),
            kind=Kind.CLIPPING,
        ),
        Scenario(
            "pairs",
            {"zh": "对比损失，每卡 3 对", "en": "contrastive, 3 pairs a rank"},
            ((3,), (3,)),
            kind=Kind.CONTRASTIVE,
        ),
        Scenario(
            "pairs_unequal",
            {"zh": "对比损失，3｜2 对", "en": "contrastive, 3 | 2 pairs"},
            ((3,), (2,)),
            kind=Kind.CONTRASTIVE,
        ),
        Scenario(
            "pairs_accumulated",
            {"zh": "对比损失，每卡累积两个 3 对的微批", "en": "contrastive, two micro-batches of 3 pairs a rank"},
            ((3, 3), (3, 3)),
            accumulation=2,
            kind=Kind.CONTRASTIVE,
        ),
        _of_sequences(
            "S",
            {
                "zh": "每个微批两条序列：(2, 8), (5, 1)｜(6, 2), (4, 1)",
                "en": "two sequences a micro-batch: (2, 8), (5, 1) | (6, 2), (4, 1)",
            },
            _FIRST,
            2,
        ),
        _of_sequences(
            "G",
            {"zh": "S 的窗口，与下一窗一起生成", "en": "the window of S, generated together with the next one"},
            _FIRST,
            2,
            generation=4,
            after=_SECOND,
        ),
        _of_sequences(
            "H",
            {"zh": "一个窗口由两次生成组成，各两个微批", "en": "a window of two generations, two micro-batches each"},
            _BOTH,
            4,
            generation=2,
        ),
        _of_sequences(
            "T",
            {"zh": "一个微步，四条序列：2, 8, 5, 1", "en": "one micro-step of four sequences: 2, 8, 5, 1"},
            (((2, 8, 5, 1),),),
            1,
        ),
        Scenario(
            "M",
            {"zh": "流水线，四个微批：2, 8, 5, 1", "en": "a pipeline, four micro-batches: 2, 8, 5, 1"},
            ((2, 8, 5, 1),),
            accumulation=4,
        ),
        Scenario(
            "Q",
            {"zh": "偏好对不等，累积两个微批：2, 1｜1, 3", "en": "unequal preference pairs, accumulated: 2, 1 | 1, 3"},
            ((2, 1), (1, 3)),
            accumulation=2,
        ),
        Scenario(
            "R",
            {
                "zh": "偏好对，不满的最后一窗：累积 2，只有一个微批 2｜1",
                "en": "preference pairs, a partial last window: 2 | 1, one of 2 micro-batches",
            },
            ((2,), (1,)),
            accumulation=2,
            before=((2, 1), (1, 3)),
        ),
        Scenario(
            "sequence",
            {"zh": "序列切成两半，各在一张卡上", "en": "a sequence cut in two, one half a rank"},
            ((3,), (3,)),
            kind=Kind.SHARDED,
        ),
        Scenario(
            "sequence_clip",
            {"zh": "裁剪梯度范数，序列切成两半", "en": "clipping the gradient norm, a sequence cut in two"},
            ((3,), (3,)),
            kind=Kind.CLIPPING,
        ),
        Scenario(
            "counters",
            {"zh": "计数：每卡 8 个微批，不累积", "en": "counters: 8 micro-batches a rank, no accumulation"},
            ((1,) * 8, (1,) * 8),
            kind=Kind.COUNTERS,
        ),
        Scenario(
            "counters_accumulated",
            {"zh": "计数：每卡 8 个微批，每 2 个更新一次", "en": "counters: 8 micro-batches a rank, an update every 2"},
            ((1,) * 8, (1,) * 8),
            accumulation=2,
            kind=Kind.COUNTERS,
        ),
    )
}
