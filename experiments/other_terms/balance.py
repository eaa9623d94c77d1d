"""The load-balancing loss of a router: expert counts and probabilities of the window, a rank, a microstep or a cell."""

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from samestep.app.calculators.batch_statistics import Inputs, compute
from samestep.app.evidence.bags import Row, Text
from samestep.experiments.other_terms.windows import (
    MICROSTEPS,
    RANKS,
    Found,
    Group,
    Wanted,
    added,
    by_unit,
    compared,
    flat,
    trained,
    weighed,
)

WIDTH, EXPERTS = 3, 4
Sizes = tuple[tuple[int, ...], ...]
CASES: dict[str, Sizes] = {"unequal": ((5, 3), (2, 8)), "equal": ((4, 4), (4, 4))}
"""How many tokens every cell has, rank by rank."""


class Seen(NamedTuple):
    """Tokens of every expert as a rank knows them in microstep k: its own cell and window, those of all ranks."""

    cell: Tensor
    own: Tensor
    step: Tensor
    so_far: Tensor
    window: Tensor


def balanced(assigned: Tensor, probability: Tensor) -> Tensor:
    """E·Σ f·p of the counts of a group; `probability` is a sum over tokens, or their mean over the same group."""
    return EXPERTS * (assigned / assigned.sum() * probability).sum()


Recipe = Callable[[Seen, Tensor], Tensor]
RECIPES: dict[str, Recipe] = {
    "global": lambda seen, p: balanced(seen.window, p.sum(0)) / seen.window.sum() * RANKS,
    "global_f_local_p": lambda seen, p: balanced(seen.window, p.mean(0)) / MICROSTEPS,
    "f_so_far": lambda seen, p: balanced(seen.so_far, p.mean(0)) / MICROSTEPS,
    "per_microstep": lambda seen, p: balanced(seen.step, p.sum(0)) / seen.step.sum() * RANKS / MICROSTEPS,
    "per_rank": lambda seen, p: balanced(seen.own, p.sum(0)) / seen.own.sum(),
    "per_microbatch": lambda seen, p: balanced(seen.cell, p.mean(0)) / MICROSTEPS,
}
"""The loss of a cell with router probabilities p, of which DDP takes the mean over ranks."""
TITLES: dict[str, Text] = {
    "global": {"zh": "均衡：f 与 p 取整个窗口", "en": "balance: f and p of the window"},
    "global_f_local_p": {"zh": "均衡：f 取窗口，p 取单元格", "en": "balance: f of the window, p of each cell"},
    "f_so_far": {"zh": "均衡：f 取到目前为止", "en": "balance: f so far"},
    "per_microstep": {"zh": "均衡：各微步，跨 rank", "en": "balance: each microstep over ranks"},
    "per_rank": {"zh": "均衡：各 rank 自己的窗口", "en": "balance: each rank's window"},
    "per_microbatch": {"zh": "均衡：各微批", "en": "balance: each microbatch"},
}


def right(case: str, recipe: str) -> bool:
    return recipe == "global" or (case == "equal" and recipe == "global_f_local_p")


def router() -> nn.Module:
    torch.manual_seed(21)
    return nn.Sequential(nn.Linear(WIDTH, EXPERTS), nn.Softmax(1))


def tokens(sizes: Sizes) -> list[list[Tensor]]:
    """`tokens[r][k]`; every rank has a preference of its own, so that their experts are loaded unequally."""
    source = torch.Generator().manual_seed(22)
    towards = torch.randn(RANKS, WIDTH, generator=source)
    return [[torch.randn(n, WIDTH, generator=source) + 2 * towards[r] for n in sizes[r]] for r in range(RANKS)]


def counts(probability: Tensor) -> Tensor:
    """How many tokens go to every expert, one each."""
    return torch.bincount(probability.argmax(1), minlength=EXPERTS).to(probability.dtype)


def measure(case: str, rank: int, group: Group) -> dict[str, Found]:
    """Every recipe on this rank."""
    own = tokens(CASES[case])[rank]
    with torch.no_grad():
        cells = [counts(router()(x)) for x in own]
    window = added(torch.stack(cells).sum(0), group)
    steps = [added(cell, group) for cell in cells]
    seen = [
        Seen(cells[k], torch.stack(cells).sum(0), steps[k], torch.stack(steps[: k + 1]).sum(0), window)
        for k in range(MICROSTEPS)
    ]

    def found(recipe: Recipe) -> Found:
        return trained(router(), own, lambda k, p: recipe(seen[k], p), group)

    return {name: found(recipe) for name, recipe in RECIPES.items()}


def reference(x: Tensor) -> Found:
    """One process with all tokens."""
    model = router()
    probability = model(x)
    loss = EXPERTS * (counts(probability) / len(x) * probability.mean(0)).sum()
    torch.autograd.backward(loss)
    return Found(flat(model), loss.detach()[None])


def rows(case: str, ranks: list[dict[str, Found]]) -> list[Row]:
    """Every recipe beside the reference and beside batch_statistics."""
    sizes, cells = CASES[case], tokens(CASES[case])
    x = torch.cat([cell for own in cells for cell in own])
    wanted, said = reference(x), calculated(cells)
    made = []
    for name, title in TITLES.items():
        scheme = said[name]
        predicted = weighed(router(), x, [by_unit(scheme.probability_gradients, sizes)])
        made.append(
            compared(
                case,
                f"balance_{name}",
                title,
                right(case, name),
                [found[name] for found in ranks],
                Wanted(wanted, Found(predicted, torch.tensor([scheme.value]))),
                loss=float(ranks[0][name].measured),
                ratio=scheme.ratio_to_reference,
            )
        )
    return made


def calculated(cells: list[list[Tensor]]) -> dict[str, Any]:
    """What the calculator says, asked with each cell's counts and mean probabilities."""
    model = router()
    with torch.no_grad():
        seen = [[model(x) for x in own] for own in cells]
    body = [
        [
            {"tokens": len(p), "assigned": counts(p).to(torch.int64).tolist(), "probability": p.mean(0).tolist()}
            for p in own
        ]
        for own in seen
    ]
    return cast(dict[str, Any], compute(Inputs.model_validate({"term": "load_balance", "cells": body})).schemes)
