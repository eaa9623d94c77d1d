"""What is read from the graph of a loss: its summands, what its losses count, and matrices of pairs."""

import pytest
import torch
from torch.nn import functional

from samestep.experiments.audit.running import graph


@pytest.fixture
def weight() -> torch.Tensor:
    return torch.randn(3, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64, requires_grad=True)


def terms(weight: torch.Tensor) -> list[torch.Tensor]:
    x = torch.arange(12.0, dtype=torch.float64).reshape(4, 3) / 10
    logits = x @ weight
    return [functional.cross_entropy(logits, torch.tensor([0, 1, 2, 3])), logits.square().mean(), weight.abs().sum()]


def total(weight: torch.Tensor) -> torch.Tensor:
    first, second, third = terms(weight)
    return (first * 2 + 0.5 * second - third) / 3


def test_the_gradient_of_one_summand_is_what_autograd_gives_it_alone(weight: torch.Tensor) -> None:
    for number, factor in enumerate((2 / 3, 0.5 / 3, -1 / 3)):
        (alone,) = torch.autograd.grad(factor * terms(weight)[number], weight)
        loss = total(weight)
        nodes = graph.summands(loss)
        assert len(nodes) == 3
        with graph.silenced([node for i, node in enumerate(nodes) if i != number]):
            (found,) = torch.autograd.grad(loss, weight)
        torch.testing.assert_close(found, alone, rtol=0, atol=1e-15)


def test_after_that_the_whole_gradient_is_what_it_was(weight: torch.Tensor) -> None:
    loss = total(weight)
    with graph.silenced(graph.summands(loss)):
        (nothing,) = torch.autograd.grad(loss, weight, retain_graph=True)
    (again,) = torch.autograd.grad(loss, weight)
    (expected,) = torch.autograd.grad(total(weight), weight)
    assert not nothing.any()
    torch.testing.assert_close(again, expected, rtol=0, atol=0)


def test_a_loss_that_is_no_sum_has_no_summands(weight: torch.Tensor) -> None:
    assert graph.summands(terms(weight)[0] / 3) == []


def test_ignored_targets_are_not_counted(weight: torch.Tensor) -> None:
    logits = torch.eye(4, 3, dtype=torch.float64) @ weight
    loss = functional.cross_entropy(logits, torch.tensor([0, -100, 2, -100]))
    assert graph.targets(loss) == 2
    assert graph.targets(logits.square().sum()) is None


def test_a_matrix_of_all_pairs_of_rows_is_seen(weight: torch.Tensor) -> None:
    rows = torch.eye(5, 3, dtype=torch.float64) @ weight
    assert (5, 5) in graph.matrices(functional.cross_entropy(rows @ rows.T, torch.arange(5)))
    assert (5, 5) not in graph.matrices(rows.square().sum())


def test_a_silent_value_is_the_same_and_has_no_gradient(weight: torch.Tensor) -> None:
    value = weight.square().sum()
    silent = graph.silent(value)
    (gradient,) = torch.autograd.grad(silent, weight)
    assert float(silent.detach()) == float(value.detach())
    assert not gradient.any()
