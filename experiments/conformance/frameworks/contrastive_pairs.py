"""What the adapters of contrastive losses share: pairs, two encoders and their scalars, one update, and its reference.

The reference is a gradient that one process computes from all pairs. A loss over N pairs whose negatives are the other
N − 1 is no sum over pairs, so the mean of what P processes compute from N/P pairs each need not have its direction.
"""

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from samestep.experiments.conformance.adapter import Contrastive, Proportion, process_group
from samestep.experiments.conformance.reader import proportion
from samestep.experiments.conformance.scenarios import Scenario

WIDTH = 8
LOG_SCALE = math.log(1 / 0.07)
"""CLIP's temperature at the start of training."""
Loss = Callable[[Tensor, Tensor, Mapping[str, Tensor]], Tensor]
"""(queries [n, WIDTH], documents [n, WIDTH], scalars by group) → loss. Embeddings have length 1, pairs share a row."""
Parts = Sequence[Sequence[int]]
"""Pairs that are each other's negatives, part by part: the reference is the mean of the loss over the parts."""


class Pairs:
    """A scenario's pairs, the same on every rank. `queries`, `documents`: [N, WIDTH], in the order rank, pair."""

    def __init__(self, scenario: Scenario) -> None:
        generator = torch.Generator().manual_seed(1)
        self.queries, self.documents = torch.randn(2, scenario.total, WIDTH, generator=generator, dtype=torch.float64)
        counts = [sum(rank) for rank in scenario.counts]
        self.of_rank = [list(range(sum(counts[:rank]), sum(counts[: rank + 1]))) for rank in range(len(counts))]
        self.together = [list(range(scenario.total))]


class Towers(nn.Module):
    """Two linear encoders with outputs of length 1, and scalars beside them; one parameter for each group.

    Only scalars that the loss uses may be there: DDP waits for the gradient of every parameter.
    """

    def __init__(self, scalars: Mapping[str, float]) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.groups = nn.ParameterDict(
            {
                name: torch.randn(WIDTH, WIDTH, generator=generator, dtype=torch.float64)
                for name in ("query", "document")
            }
            | {name: torch.tensor(value, dtype=torch.float64) for name, value in scalars.items()}
        )
        self.scalars = list(scalars)

    def forward(self, queries: Tensor, documents: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        return (
            functional.normalize(queries @ self.groups["query"], dim=1),
            functional.normalize(documents @ self.groups["document"], dim=1),
            {name: self.groups[name] for name in self.scalars},
        )


def measure(
    loss: Loss, reference: Loss, scenario: Scenario, rank: int, scalars: Mapping[str, float], *, by_rank: bool = False
) -> Contrastive:
    """One update with learning rate 1 of the encoders under DDP, each rank with its own pairs.

    `loss` is the framework's, for this rank's pairs; `reference` must not communicate. `by_rank`: compare with the mean
    of the ranks' losses, each over its own pairs, instead of the loss over all pairs.
    """
    process_group()
    pairs, towers = Pairs(scenario), Towers(scalars)
    before = {name: parameter.detach().clone() for name, parameter in towers.groups.items()}
    parts: Parts = pairs.of_rank if by_rank else pairs.together
    objective = mean([reference(*towers(pairs.queries[part], pairs.documents[part])) for part in parts])
    wanted = dict(zip(before, torch.autograd.grad(objective, list(towers.groups.values())), strict=True))
    ddp = DistributedDataParallel(towers)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=1.0)
    mine = pairs.of_rank[rank]
    loss(*ddp(pairs.queries[mine], pairs.documents[mine])).backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return compared({name: before[name] - after.detach() for name, after in towers.groups.items()}, wanted)


def compared(update: Mapping[str, Tensor], reference: Mapping[str, Tensor]) -> Contrastive:
    """`update`: (before − after) ÷ learning rate of each group; `reference`: its gradient."""
    return Contrastive({name: Proportion(*proportion(update[name], reference[name])) for name in reference})


def mean(losses: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(losses)).mean()


# The losses over pairs that are all here, from their definitions.


def info_nce(queries: Tensor, documents: Tensor, scale: Tensor | float) -> Tensor:
    """−log of the softmax of every query's own document among all documents; its logits are scale × cosine."""
    return functional.cross_entropy(scale * queries @ documents.T, torch.arange(len(queries)))


def symmetric(queries: Tensor, documents: Tensor, scale: Tensor | float) -> Tensor:
    """The mean of both directions: CLIP's loss."""
    return (info_nce(queries, documents, scale) + info_nce(documents, queries, scale)) / 2


def all_directions(queries: Tensor, documents: Tensor, scale: Tensor | float) -> Tensor:
    """One softmax for each pair: document i for query i, against every other text beside either of the two.

    The logits of pair i are its own, those of query i and of document i with the others' queries and documents.
    """
    others = torch.zeros(len(queries), len(queries), dtype=queries.dtype).fill_diagonal_(-torch.inf)
    across = scale * queries @ documents.T
    within = [scale * texts @ texts.T + others for texts in (queries, documents)]
    logits = torch.cat([across, across.T, *within], dim=1)
    return (logits.logsumexp(dim=1) - across.diagonal()).mean()


def sigmoid(queries: Tensor, documents: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    """SigLIP: a yes or no for each of the N² combinations, summed and divided by N."""
    signs = 2 * torch.eye(len(queries), dtype=queries.dtype) - 1
    return -functional.logsigmoid(signs * (scale * queries @ documents.T + bias)).sum() / len(queries)
