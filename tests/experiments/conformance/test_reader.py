"""Known weights go into a loss, plain torch makes the update, and the reader finds them again."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from samestep.experiments.conformance.reader import IGNORED, Bigram, Tokens, by_cell, proportion, relative, tomography

COUNTS = ((2, 3), (0, 1))
WEIGHTS = [[[0.25, -1.5], [0.0, 3.0, 1 / 3]], [[], [0.125]]]


def trained(window: Tokens, weights: list[list[list[float]]], also: float = 0.0) -> Tensor:
    """(before − after) ÷ lr of one SGD step on Σ weight · loss, `also` · what no token has asked for."""
    model = Bigram(window.end + 1)
    loss = also * model.weight[window.end].sum()
    for rank, microbatches in enumerate(weights):
        for k, cell in enumerate(microbatches):
            labels = window.labels(rank, k)
            each = functional.cross_entropy(model(window.ids(rank, k)), labels, ignore_index=IGNORED, reduction="none")
            loss = loss + (each[: len(cell)] * torch.tensor(cell, dtype=torch.float64)).sum()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    loss.backward()
    optimizer.step()
    return -model.weight.detach()


def test_the_table_gives_back_every_weight() -> None:
    window = Tokens(COUNTS)
    found, residual = window.read(trained(window, WEIGHTS))
    assert found == [[[pytest.approx(c, abs=1e-15) for c in cell] for cell in rank] for rank in WEIGHTS]
    assert residual < 1e-15


def test_an_update_of_something_else_is_residual() -> None:
    window = Tokens(COUNTS)
    found, residual = window.read(trained(window, WEIGHTS, also=0.5))
    assert found[0][1][1] == pytest.approx(3.0)
    assert residual > 0.1


def test_windows_one_after_another_are_read_from_one_table() -> None:
    first = Tokens(COUNTS)
    second = Tokens(((1,), (1,)), first=first.end)
    update = torch.zeros(second.end + 1, 4, dtype=torch.float64)
    for window, weights in ((first, WEIGHTS), (second, [[[0.5]], [[2.0]]])):
        part = trained(window, weights)
        update[: len(part)] += part
    found, residual = second.read(update, others=[first])
    assert found == [[[pytest.approx(0.5)]], [[pytest.approx(2.0)]]]
    assert residual < 1e-15
    assert second.read(update)[1] > 0.1  # without being told of the first window


def test_padding_is_ignored_and_no_two_labels_share_a_row() -> None:
    window = Tokens(COUNTS)
    assert window.labels(1, 0).tolist() == [IGNORED] * 8
    assert window.ids(1, 0).tolist() == [0] * 8
    rows = [row for rank in window.rows for cell in rank for row in cell]
    assert rows == list(range(1, window.end))


def test_what_is_not_finite_leaves_no_small_residual() -> None:
    window = Tokens(COUNTS)
    update = trained(window, WEIGHTS)
    update[1, 1] = math.nan  # where the label of row 1 is
    found, residual = window.read(update)
    assert math.isnan(found[0][0][0])
    assert math.isnan(residual)


# ---- tomography -------------------------------------------------------------------------------------------------


def network() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 5)).double()


def token_gradients(model: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    """[tokens, parameters], by autograd."""
    lines = []
    for one, label in zip(inputs, labels, strict=True):
        loss = functional.cross_entropy(model(one), label)
        lines.append(torch.cat([each.flatten() for each in torch.autograd.grad(loss, list(model.parameters()))]))
    return torch.stack(lines)


def test_tomography_gives_back_the_weights_of_a_real_model() -> None:
    model = network()
    inputs, labels = torch.randn(6, 3).double(), torch.tensor([0, 1, 2, 3, 4, 0])
    weights = torch.tensor([0.25, 0.25, 0.0, -1.0, 2.0, 0.0625]).double()
    gradients = token_gradients(model, inputs, labels)
    before = torch.cat([each.detach().flatten().clone() for each in model.parameters()])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    (functional.cross_entropy(model(inputs), labels, reduction="none") * weights).sum().backward()
    optimizer.step()
    after = torch.cat([each.detach().flatten() for each in model.parameters()])
    found, residual = tomography(gradients, (before - after) / 0.5)
    assert found.tolist() == pytest.approx(weights.tolist(), abs=1e-12)
    assert residual < 1e-12


def test_a_token_that_is_not_accounted_for_shows_as_residual() -> None:
    model = network()
    gradients = token_gradients(model, torch.randn(6, 3).double(), torch.tensor([0, 1, 2, 3, 4, 0]))
    _, residual = tomography(gradients[:5], gradients.sum(0))
    assert residual > 1e-2


def test_gradients_that_depend_on_each_other_are_refused() -> None:
    one = token_gradients(network(), torch.randn(1, 3).double(), torch.tensor([0]))
    with pytest.raises(ValueError, match="not independent"):
        tomography(torch.cat([one, 2 * one]), one[0])


def test_values_are_dealt_out_by_rank_and_micro_batch() -> None:
    assert by_cell([1, 2, 3, 4, 5, 6], COUNTS) == [[[1, 2], [3, 4, 5]], [[], [6]]]


def test_a_proportion_is_a_factor_and_what_it_does_not_explain() -> None:
    reference = torch.tensor([3.0, 4.0])
    assert proportion(0.5 * reference, reference) == (pytest.approx(0.5), pytest.approx(0.0, abs=1e-15))
    factor, residual = proportion(reference + torch.tensor([-4.0, 3.0]), reference)  # at right angles, as long
    assert (factor, residual) == (pytest.approx(1.0), pytest.approx(1.0))


def test_nothing_of_nothing_is_no_residual() -> None:
    assert relative(torch.zeros(3), torch.zeros(3)) == 0.0
