"""What lies beside the update: copies of the parameters, noted values, settings, and how often an average was taken."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from samestep.experiments.audit.judging import compare, noted, outside
from samestep.experiments.audit.judging.explaining import pulls
from samestep.experiments.audit.running.trace import Trace
from samestep.experiments.audit.running.vectors import Vectors


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(3, 2)


class ByHand:
    """A moving average as a class of the reader's own."""

    def __init__(self, model: nn.Module) -> None:
        self.decay = 0.9
        self.shadow = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def test_a_copy_is_told_by_its_shapes_wherever_it_is_kept(model: nn.Module) -> None:
    flat = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    held = {"ema": ByHand(model), "EMA": {"m": [p.detach().clone() for p in model.parameters()]}, "flat": flat}
    found, others = outside.copies(held, model)
    assert set(found) == {"ema.shadow.weight", "ema.shadow.bias", "EMA.m.0", "EMA.m.1", "flat"}
    assert others == []


def test_the_parameters_themselves_are_no_copy_and_other_tensors_are_listed(model: nn.Module) -> None:
    held = {"same": model, "losses": [torch.tensor(1.0)], "rows": torch.zeros(7, 5), "text": "x"}
    found, others = outside.copies(held, model)
    assert found == {}
    assert others == ["losses", "rows"]


def test_learning_rates_and_a_schedules_place_are_settings(model: nn.Module) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (step + 1))
    before = outside.settings([optimizer], [schedule])
    optimizer.step()
    schedule.step()
    after = outside.settings([optimizer], [schedule])
    changed = {name: (old, new) for name, old, new in compare.settings(before, after)}
    assert changed["optimizer0.group0.lr"] == (1e-3, 5e-4)
    assert changed["LambdaLR0.last_epoch"] == (0.0, 1.0)


def trace(folder: Path, rank: int, repeated: int = 1, **notes: list[float]) -> Trace:
    found = Trace(rank, folder, repeated=dict.fromkeys(notes, repeated))
    values = {name: np.array(each) for name, each in notes.items()}
    found.vectors = {"notes": Vectors.write(folder / f"notes{rank}{repeated}.f64", values)}
    return found


@pytest.mark.parametrize(
    ("ranks", "differs"),
    [
        (([2.0], [2.0]), False),
        (([1.0], [3.0]), False),  # their mean
        (([0.5], [1.5]), False),  # their sum
        (([2.0], [2.1]), True),
    ],
)
def test_a_noted_value_is_the_references_on_every_rank_or_their_mean_or_sum(
    tmp_path: Path, ranks: tuple[list[float], ...], differs: bool
) -> None:
    (tmp_path / "reference").mkdir()
    reference = trace(tmp_path / "reference", 0, value=[2.0])
    found = noted.notes(reference, [trace(tmp_path, i, value=each) for i, each in enumerate(ranks)], 1e-9)
    assert found is not None
    assert found.there is differs


def test_what_is_noted_in_every_microbatch_is_said_not_to_be_compared(tmp_path: Path) -> None:
    (tmp_path / "reference").mkdir()
    reference = trace(tmp_path / "reference", 0, value=[2.0])
    ranks = [trace(tmp_path, 0, repeated=3, value=[1.0])]
    assert noted.notes(reference, ranks, 1e-9) is None
    assert noted.uncounted(reference, ranks) == ["value"]


def test_each_tensor_is_judged_by_its_own_size(tmp_path: Path) -> None:
    expected = Vectors.write(tmp_path / "a.f64", {"large": np.array([1e6]), "small": np.array([1e-3])})
    got = Vectors.write(tmp_path / "b.f64", {"large": np.array([1e6]), "small": np.array([1.1e-3])})
    found = compare.one_by_one(expected, got, 1e-9)
    assert found is not None
    assert found.there
    assert [name for name, _ in found.tensors] == ["small"]


@pytest.mark.parametrize("weight", [0.001, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("times", [2, 3, 6])
def test_how_often_an_average_was_taken_is_read_from_how_far_it_moved(weight: float, times: int) -> None:
    """Averages of the same value, done one after another, where one of them says with what weight."""
    value, begin = torch.arange(1.0, 5.0, dtype=torch.float64), torch.zeros(4, dtype=torch.float64)
    once, often = torch.lerp(begin, value, weight), begin
    for _ in range(times):
        often = torch.lerp(often, value, weight)
    found = (pulls.pull([(value - begin).numpy()], [(each - begin).numpy()]) for each in (once, often))
    assert pulls.times_of(*(1 - each for each in found)) == times


def test_what_moved_less_far_or_not_a_whole_number_of_times_is_no_repeated_average() -> None:
    assert pulls.times_of(0.9, 0.95) is None
    assert pulls.times_of(0.9, 0.9**2.5) is None
    assert pulls.times_of(0.9, 1.0) is None


def test_what_moved_another_way_was_not_pulled_there() -> None:
    assert pulls.pull([np.array([1.0, 2.0])], [np.array([1.0, 1.0])]) == 0.0
