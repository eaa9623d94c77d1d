"""What one look at every operation says: chance, and types coarser than the audit's."""

import pytest
import torch
from torch.nn import functional

from samestep.experiments.audit.running import taps
from samestep.experiments.audit.running.probe import Probe, Watching


@pytest.fixture
def backward_is_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    def announced(loss: torch.Tensor) -> None:
        monkeypatch.setattr(taps.State, "backward_depth", 1)
        loss.backward()
        monkeypatch.setattr(taps.State, "backward_depth", 0)

    monkeypatch.setattr(torch.Tensor, "run_backward", announced, raising=False)


def probe(run: object) -> Probe:
    found = Probe()
    with Watching(found, torch.float64):
        run()  # type: ignore[operator]
    return found


def weight() -> torch.Tensor:
    return torch.ones(3, dtype=torch.float64, requires_grad=True)


def test_numbers_drawn_are_seen_with_any_generator_and_dropout_only_if_it_is_on() -> None:
    generator = torch.Generator().manual_seed(1)
    assert probe(lambda: torch.randn(2, generator=generator)).drawn == ["randn"]
    assert probe(lambda: functional.dropout(weight(), 0.5)).drawn == ["bernoulli_"]
    assert probe(lambda: functional.dropout(weight(), 0.0)).drawn == []
    assert probe(lambda: weight() * 2).drawn == []


@pytest.mark.usefixtures("backward_is_announced")
def test_a_type_counts_that_leads_to_the_gradient() -> None:
    assert probe(lambda: weight().float().sum().run_backward()).coarsest == "float32"  # type: ignore[attr-defined]
    assert probe(lambda: weight().sum().run_backward()).coarsest is None  # type: ignore[attr-defined]


@pytest.mark.usefixtures("backward_is_announced")
def test_a_buffer_that_carries_the_gradient_afterwards_does_not_count() -> None:
    def run() -> None:
        here = weight()
        here.square().sum().run_backward()  # type: ignore[attr-defined]
        assert here.grad is not None
        here.grad.copy_(here.grad.float())

    assert probe(run).coarsest is None
