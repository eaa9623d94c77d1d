"""The situations that every framework is put into: how many valid labels each rank has in each micro-batch.

Symbols: P processes, K micro-batches per update as configured (`accumulation`), n[r][k] valid labels of rank r in
micro-batch k, N their sum. In a partial last window fewer than K micro-batches exist, K stays what was configured.
"""

from dataclasses import dataclass
from enum import StrEnum

from samestep.app.evidence.bags import Text

Counts = tuple[tuple[int, ...], ...]


class Kind(StrEnum):
    """What is looked at: the coefficient of every token (or pair of a contrastive loss), state, or clipping."""

    COEFFICIENTS = "coefficients"
    STATE = "state"
    CLIPPING = "clipping"
    CONTRASTIVE = "contrastive"


@dataclass(frozen=True)
class Scenario:
    """`counts[r][k]`: valid labels (or, of a contrastive scenario, pairs) of rank r in micro-batch k.

    `before`: a complete window that runs first, where a framework has to be brought into the situation (a tail needs an
    epoch that it can be the tail of; moments have to be there before an empty window can move anything).
    """

    id: str
    title: Text
    counts: Counts
    accumulation: int = 1
    before: Counts = ()
    kind: Kind = Kind.COEFFICIENTS

    @property
    def tail(self) -> bool:
        """Whether the window is a last one that is not full: what holds there need not hold elsewhere."""
        return len(self.counts[0]) < self.accumulation

    @property
    def total(self) -> int:
        """N, over all ranks and micro-batches."""
        return sum(map(sum, self.counts))


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
    )
}
