"""Cross-entropy, and beside it a distillation KL over rows of its own: whose count divides the second term?

Every term passes through a parameter of its own that is 1: its gradient is what arrives of that term.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import kl_div, one_hot

from samestep.app.calculators.loss_terms import Inputs, compute
from samestep.app.evidence.bags import Json, Row, Text
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

WIDTH, CLASSES = 3, 5
COEFFICIENTS = (1.0, 0.25)
COUNTS = (((2, 3), (1, 6)), ((3, 6), (5, 2)))
"""Units of every cell, `COUNTS[t][r][k]`: labels of the first term, rows of the second."""

Unit = tuple[Tensor, Tensor]
"""Inputs of a term's units in a cell, and the distributions that they are compared with."""


class Counted(NamedTuple):
    """Counts as a rank knows them: of its own cell, its window, and the window of all ranks, term by term."""

    cell: Tensor
    own: Tensor
    window: Tensor


class Recipe(NamedTuple):
    """What a term's losses in a cell become, of term t, and what the gradients are multiplied by at the end."""

    title: Text
    term: Callable[[Tensor, int, Counted], Tensor]
    finally_by: Callable[[Counted], Tensor | float] = lambda counted: 1.0


def _text(zh: str, en: str) -> Text:
    return {"zh": f"KL：{zh}", "en": f"KL: {en}"}


def _whole_gradient(counted: Counted) -> Tensor:
    """Undoes DDP's mean, and divides by the first term's count."""
    return RANKS / counted.window[0]


RECIPES: dict[str, Recipe] = {
    "own_global_count": Recipe(
        _text("自己的全局数量", "its own global count"), lambda u, t, n: u.sum() * RANKS / n.window[t]
    ),
    "own_cell_mean": Recipe(_text("各单元格取均值", "mean of each cell"), lambda u, t, n: u.mean() / MICROSTEPS),
    "own_cell_mean_summed": Recipe(
        _text("各单元格取均值，不除以 K", "mean of each cell, not divided by K"), lambda u, t, n: u.mean()
    ),
    "own_replica_mean": Recipe(_text("各副本取均值", "mean of each replica"), lambda u, t, n: u.sum() / n.own[t]),
    "first_terms_count": Recipe(
        _text("第一项的全局数量", "the first term's global count"), lambda u, t, n: u.sum() * RANKS / n.window[0]
    ),
    "first_terms_cell": Recipe(
        _text("第一项在单元格里的数量", "the first term's count in the cell"),
        lambda u, t, n: u.sum() / n.cell[0] / MICROSTEPS,
    ),
    "global_count_without_P": Recipe(
        _text("自己的全局数量，没有乘 P", "its own global count, without the factor P"),
        lambda u, t, n: u.sum() / n.window[t],
    ),
    "per_token_loss": Recipe(
        _text("均值相加，最后除以第一项的数量", "means added, divided by the first term's count at the end"),
        lambda u, t, n: u.mean() if t else u.sum(),
        _whole_gradient,
    ),
    "per_token_loss_corrected": Recipe(
        _text("同上，均值先乘第一项的数量", "the same, each mean times the first term's count"),
        lambda u, t, n: u.mean() * n.cell[0] if t else u.sum(),
        _whole_gradient,
    ),
}


class Student(nn.Module):
    """For each term, the divergence of every unit from its target; of a label that is its cross-entropy."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(41)
        self.layer = nn.Linear(WIDTH, CLASSES)
        self.factors = nn.Parameter(torch.ones(len(COUNTS)))

    def forward(self, units: list[Unit]) -> list[Tensor]:
        logs = [torch.log_softmax(self.layer(x), 1) for x, _ in units]
        losses = [kl_div(log, target, reduction="none").sum(1) for log, (_, target) in zip(logs, units, strict=True)]
        return [factor * loss for factor, loss in zip(self.factors, losses, strict=True)]


def cells() -> list[list[list[Unit]]]:
    """`cells()[r][k][t]`."""
    source = torch.Generator().manual_seed(42)

    def unit(t: int, n: int) -> Unit:
        x = torch.randn(n, WIDTH, generator=source)
        if t == 0:
            return x, one_hot(torch.randint(CLASSES, (n,), generator=source), CLASSES).to(x.dtype)
        return x, torch.softmax(torch.randn(n, CLASSES, generator=source), 1)

    return [[[unit(t, COUNTS[t][r][k]) for t in range(2)] for k in range(MICROSTEPS)] for r in range(RANKS)]


def everything() -> list[Unit]:
    """All units of each term, in order of cells."""
    every = [cell for own in cells() for cell in own]
    return [(torch.cat([cell[t][0] for cell in every]), torch.cat([cell[t][1] for cell in every])) for t in range(2)]


def measure(case: str, rank: int, group: Group) -> dict[str, Found]:
    """Every recipe on this rank: the gradients of the weights and, as the measured numbers, those of the factors."""
    inputs = cells()[rank]
    counts = torch.tensor([[len(x) for x, _ in cell] for cell in inputs], dtype=torch.float64)
    window = added(counts.sum(0), group)
    seen = [Counted(counts[k], counts.sum(0), window) for k in range(MICROSTEPS)]

    def found(recipe: Recipe) -> Found:
        def loss(k: int, units: list[Tensor]) -> Tensor:
            return torch.stack([c * recipe.term(units[t], t, seen[k]) for t, c in enumerate(COEFFICIENTS)]).sum()

        return split(trained(Student(), inputs, loss, group).gradient * recipe.finally_by(seen[0]))

    return {name: found(recipe) for name, recipe in RECIPES.items()}


def split(gradient: Tensor) -> Found:
    """The gradients of the student without those of its factors, and these: `parameters()` has the factors first."""
    return Found(gradient[len(COUNTS) :], gradient[: len(COUNTS)])


def rows(case: str, ranks: list[dict[str, Found]]) -> list[Row]:
    """Every recipe beside the sum of the terms' own means in one process, and beside loss_terms."""
    model = Student()
    losses = model(everything())
    torch.autograd.backward(torch.stack([c * loss.mean() for c, loss in zip(COEFFICIENTS, losses, strict=True)]).sum())
    right = split(flat(model))
    said = calculated([loss.detach() for loss in losses])
    made = []
    for name, recipe in RECIPES.items():
        terms = said[name].terms
        weights = [by_unit(term.weights, sizes) for term, sizes in zip(terms, COUNTS, strict=True)]
        found = [one[name] for one in ranks]
        made.append(
            compared(
                case,
                f"kl_{name}",
                recipe.title,
                name == "own_global_count",
                found,
                Wanted(right, split(weighed(Student(), everything(), weights))),
                arrived=cast(Json, (found[0].measured / right.measured).tolist()),
                multiples=[term.multiple for term in terms],
                uniform=[term.uniform for term in terms],
            )
        )
    return made


def calculated(losses: list[Tensor]) -> dict[str, Any]:
    """What the calculator says, asked with the counts and sums of every cell."""
    terms = []
    for t, (loss, counts) in enumerate(zip(losses, COUNTS, strict=True)):
        sums = [part.sum().item() for part in cast(Any, loss).split([n for own in counts for n in own])]
        terms.append(
            {
                "name": ("labels", "kl")[t],
                "coefficient": COEFFICIENTS[t],
                "counts": [list(own) for own in counts],
                "sums": [sums[start : start + MICROSTEPS] for start in range(0, len(sums), MICROSTEPS)],
            }
        )
    return cast(dict[str, Any], compute(Inputs.model_validate({"terms": terms})).schemes)
