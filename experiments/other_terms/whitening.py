"""Rewards less their mean and over their deviation, as advantages: moments gathered, or each rank's own."""

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn

from samestep.app.calculators.batch_statistics import Inputs, compute
from samestep.app.evidence.bags import Row, Text
from samestep.experiments.other_terms.windows import (
    RANKS,
    Found,
    Group,
    Wanted,
    added,
    compared,
    flat,
    trained,
    weighed,
)

WIDTH, ACTIONS = 3, 3
REWARDS = (((1, 4, 2), (7, 3)), ((11, 6), (9, 14, 8, 12)))
"""One for every completion, `REWARDS[r][k]`."""
SIZES = tuple(tuple(map(len, own)) for own in REWARDS)
TOTAL = sum(map(sum, SIZES))

Whitener = Callable[[list[Tensor], Group], list[Tensor]]
"""The rewards of this rank's cells, whitened."""


def gathered(own: list[Tensor], group: Group) -> list[Tensor]:
    """Count and sum of all ranks, then their squared distances from the mean."""
    x = torch.cat(own)
    count, total = added(torch.stack([torch.ones_like(x).sum(), x.sum()]), group)
    mean = total / count
    deviation = (added((x - mean).square().sum(), group) / (count - 1)).sqrt()
    return [(cell - mean) / deviation for cell in own]


def per_rank(own: list[Tensor], group: Group) -> list[Tensor]:
    x = torch.cat(own)
    return [(cell - x.mean()) / x.std() for cell in own]


def per_microbatch(own: list[Tensor], group: Group) -> list[Tensor]:
    return [(cell - cell.mean()) / cell.std() for cell in own]


def averaged(own: list[Tensor], group: Group) -> list[Tensor]:
    x = torch.cat(own)
    mean, variance = added(torch.stack([x.mean(), x.var()]), group) / RANKS
    return [(cell - mean) / variance.sqrt() for cell in own]


WHITENERS: dict[str, Whitener] = {
    "global": gathered,
    "per_rank": per_rank,
    "per_microbatch": per_microbatch,
    "averaged_moments": averaged,
}
TITLES: dict[str, Text] = {
    "global": {"zh": "白化：收集个数、和与平方和", "en": "whitening: count, sum and squares gathered"},
    "per_rank": {"zh": "白化：各 rank 自己的", "en": "whitening: each rank's own"},
    "per_microbatch": {"zh": "白化：各微批自己的", "en": "whitening: each microbatch's own"},
    "averaged_moments": {
        "zh": "白化：各 rank 的均值与方差再平均",
        "en": "whitening: ranks' means and variances averaged",
    },
}


class Policy(nn.Module):
    """The log probabilities of the actions that were taken; its inputs are states and those actions."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(31)
        self.layer = nn.Linear(WIDTH, ACTIONS)

    def forward(self, taken: tuple[Tensor, Tensor]) -> Tensor:
        states, actions = taken
        return torch.log_softmax(self.layer(states), 1).gather(1, actions[:, None])[:, 0]


def taken() -> list[list[tuple[Tensor, Tensor]]]:
    """States and actions of every cell."""
    source = torch.Generator().manual_seed(32)
    return [
        [(torch.randn(n, WIDTH, generator=source), torch.randint(ACTIONS, (n,), generator=source)) for n in own]
        for own in SIZES
    ]


def measure(case: str, rank: int, group: Group) -> dict[str, Found]:
    """Every way on this rank: the gradient of -Σ(advantage · log probability)/N, and the advantages of all ranks."""
    own = [torch.tensor(cell, dtype=torch.float64) for cell in REWARDS[rank]]
    first = sum(map(len, (cell for earlier in REWARDS[:rank] for cell in earlier)))

    def found(whitener: Whitener) -> Found:
        advantages = whitener(own, group)

        def loss(k: int, logs: Tensor) -> Tensor:
            return -(advantages[k] * logs).sum() * RANKS / TOTAL

        everybody, mine = torch.zeros(TOTAL), torch.cat(advantages)
        everybody[first : first + len(mine)] = mine
        return Found(trained(Policy(), taken()[rank], loss, group).gradient, added(everybody, group))

    return {name: found(whitener) for name, whitener in WHITENERS.items()}


def rows(case: str, ranks: list[dict[str, Found]]) -> list[Row]:
    """Every way beside one process with all rewards, and beside batch_statistics."""
    cells = [cell for own in taken() for cell in own]
    whole = torch.cat([states for states, _ in cells]), torch.cat([actions for _, actions in cells])
    rewards = torch.tensor([reward for own in REWARDS for cell in own for reward in cell], dtype=torch.float64)
    advantages = (rewards - rewards.mean()) / rewards.std()
    model = Policy()
    torch.autograd.backward(-(advantages * model(whole)).mean())
    right = Found(flat(model), advantages)
    made = []
    for name, title in TITLES.items():
        scheme = calculated()[name]
        predicted = torch.tensor([value for own in scheme.whitened for cell in own for value in cell])
        gradient = weighed(Policy(), whole, [-predicted / TOTAL])
        away = (ranks[0][name].measured - advantages).abs().max()
        made.append(
            compared(
                case,
                f"whitening_{name}",
                title,
                name == "global",
                [found[name] for found in ranks],
                Wanted(right, Found(gradient, predicted)),
                away=float(away),
                predicted_away=scheme.max_abs_difference,
            )
        )
    return made


def calculated() -> dict[str, Any]:
    """What the calculator says of the rewards."""
    body = {"term": "whiten", "values": [[list(cell) for cell in own] for own in REWARDS]}
    return cast(dict[str, Any], compute(Inputs.model_validate(body)).schemes)
