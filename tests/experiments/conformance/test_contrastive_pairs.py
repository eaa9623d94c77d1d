"""The reference of contrastive measurements: losses by their definitions, and what a mean over parts makes of them."""

import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from samestep.experiments.conformance.frameworks.contrastive_pairs import (
    Loss,
    Pairs,
    Towers,
    all_directions,
    compared,
    info_nce,
    mean,
    sigmoid,
    symmetric,
)
from samestep.experiments.conformance.scenarios import SCENARIOS

SCALE = 3.0
PAIRS = Pairs(SCENARIOS["pairs"])
QUERIES, DOCUMENTS = (functional.normalize(each, dim=1) for each in (PAIRS.queries, PAIRS.documents))


def dot(one: Tensor, other: Tensor) -> float:
    return math.fsum(a * b for a, b in zip(one.tolist(), other.tolist(), strict=True))


def minus_log_share(own: float, others: Sequence[float]) -> float:
    """−log of own's share in the softmax of own and others, logits SCALE × each."""
    return -math.log(math.exp(SCALE * own) / math.fsum(math.exp(SCALE * each) for each in (own, *others)))


def test_info_nce_is_each_querys_surprise_at_its_own_document() -> None:
    surprises = [
        minus_log_share(dot(query, DOCUMENTS[i]), [dot(query, d) for j, d in enumerate(DOCUMENTS) if j != i])
        for i, query in enumerate(QUERIES)
    ]
    assert float(info_nce(QUERIES, DOCUMENTS, SCALE)) == pytest.approx(math.fsum(surprises) / 6, abs=1e-14)


def test_the_symmetric_loss_does_not_care_which_side_asks_and_info_nce_does() -> None:
    assert float(symmetric(QUERIES, DOCUMENTS, SCALE)) == pytest.approx(float(symmetric(DOCUMENTS, QUERIES, SCALE)))
    one_way, other_way = (float(info_nce(*sides, SCALE)) for sides in ((QUERIES, DOCUMENTS), (DOCUMENTS, QUERIES)))
    assert abs(one_way - other_way) > 1e-3
    assert float(symmetric(QUERIES, DOCUMENTS, SCALE)) == pytest.approx((one_way + other_way) / 2)


def test_in_all_directions_every_other_text_is_a_negative_of_either_side() -> None:
    surprises = []
    for i, (query, document) in enumerate(zip(QUERIES, DOCUMENTS, strict=True)):
        others = [dot(side, text) for side in (query, document) for texts in (QUERIES, DOCUMENTS)
                  for j, text in enumerate(texts) if j != i]  # fmt: skip
        others.append(dot(query, document))  # seen once from each side
        surprises.append(minus_log_share(dot(query, document), others))
    assert float(all_directions(QUERIES, DOCUMENTS, SCALE)) == pytest.approx(math.fsum(surprises) / 6, abs=1e-14)


def test_the_sigmoid_loss_answers_yes_for_pairs_and_no_for_all_others() -> None:
    scale, bias = torch.tensor(SCALE), torch.tensor(-1.0)
    asked = [
        math.log1p(math.exp((-1 if i == j else 1) * (SCALE * dot(query, document) - 1)))
        for i, query in enumerate(QUERIES)
        for j, document in enumerate(DOCUMENTS)
    ]
    assert float(sigmoid(QUERIES, DOCUMENTS, scale, bias)) == pytest.approx(math.fsum(asked) / 6, abs=1e-14)


def test_ranks_share_the_pairs_out_without_overlap() -> None:
    assert PAIRS.of_rank == [[0, 1, 2], [3, 4, 5]]
    assert Pairs(SCENARIOS["pairs_unequal"]).of_rank == [[0, 1, 2], [3, 4]]


def gradients(loss: Loss, parts: Sequence[Sequence[int]]) -> dict[str, Tensor]:
    towers = Towers({})
    objective = mean([loss(*towers(PAIRS.queries[part], PAIRS.documents[part])) for part in parts])
    return dict(zip(towers.groups, torch.autograd.grad(objective, list(towers.groups.values())), strict=True))


def distances(queries: Tensor, documents: Tensor, _: object) -> Tensor:
    """A loss without negatives, which is a mean over pairs."""
    return (queries - documents).square().sum(dim=1).mean()


def contrast(queries: Tensor, documents: Tensor, _: object) -> Tensor:
    return info_nce(queries, documents, SCALE)


@pytest.mark.parametrize(("loss", "same"), [(distances, True), (contrast, False)])
def test_the_mean_over_ranks_is_the_full_batch_only_without_negatives(loss: Loss, same: bool) -> None:
    found = compared(gradients(loss, PAIRS.of_rank), gradients(loss, PAIRS.together))
    for proportion in found.groups.values():
        assert (proportion.residual < 1e-14) == same
        assert (proportion.factor == pytest.approx(1, abs=1e-14)) == same
        assert same or proportion.residual > 0.05


def test_a_gradient_of_half_the_length_has_factor_one_half_and_no_residual() -> None:
    whole = gradients(contrast, PAIRS.together)
    found = compared({name: gradient / 2 for name, gradient in whole.items()}, whole).groups["query"]
    assert (found.factor, found.residual) == (pytest.approx(0.5), pytest.approx(0, abs=1e-15))
