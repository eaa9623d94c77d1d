"""The shared taps announce what a step does, in order, and leave torch as it was."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from samestep.experiments.taps import sites
from samestep.experiments.taps.engine import Engine
from samestep.experiments.taps.moments import Moments
from samestep.experiments.taps.patches import Patches


class Heard:
    """Everything that is announced, as words."""

    listening = True

    def __init__(self) -> None:
        self.words: list[str] = []

    @contextmanager
    def around(self, name: str, roots: Any, more: tuple[Any, ...], named: dict[str, Any]) -> Iterator[None]:
        self.words.append(name)
        yield

    def grouped(self, optimizer: Any) -> None:
        self.words.append("group")

    def zeroing(self, parameters: Iterable[Tensor]) -> None:
        self.words.append(f"zero {len(list(parameters))}")

    def clipping(self, parameters: list[Tensor], kind: str, limit: Any) -> None:
        self.words.append(f"clip {kind} {limit}")

    def clipped(self, norm: Any) -> None:
        self.words.append(f"norm {float(norm):g}")

    def scaled(self, scaler: Any) -> None:
        self.words.append("scaled")

    def unscaled(self, scaler: Any, optimizer: Any) -> None:
        self.words.append("unscaled")

    def skipped(self, scaler: Any, optimizer: Any) -> None:
        self.words.append("skipped")

    def step_begins(self, optimizer: Any, depth: int, closure: bool) -> None:
        self.words.append(f"step {depth}")

    def evaluated(self, optimizer: Any, depth: int) -> None:
        self.words.append(f"evaluated {depth}")

    def step_ends(self, optimizer: Any, depth: int, closure: bool) -> None:
        self.words.append(f"end {depth}")


@pytest.fixture
def heard() -> Iterator[Heard]:
    listener, patches = Heard(), Patches()
    Moments(listener).install(patches)
    Engine(listener.around).install(patches)
    yield listener
    patches.undo()


def layer() -> nn.Linear:
    made = nn.Linear(2, 1, bias=False)
    nn.init.constant_(made.weight, 1.0)
    return made


def backward(model: nn.Module) -> Tensor:
    loss: Tensor = model(torch.tensor([[3.0, 4.0]])).sum()
    loss.backward()  # type: ignore[no-untyped-call]
    return loss


def test_a_plain_update_is_announced_in_its_order(heard: Heard) -> None:
    model = layer()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    backward(model)
    nn.utils.clip_grad_norm_(model.parameters(), max_norm=2.5)
    optimizer.step()
    optimizer.zero_grad()
    assert heard.words == ["group", "backward", "clip norm 2.5", "norm 5", "step 1", "end 1", "zero 1"]


def test_a_step_that_calls_its_parents_step_is_one_step_with_another_inside(heard: Heard) -> None:
    class Twice(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            return super().step(closure)

    model = layer()
    optimizer = Twice(model.parameters(), lr=0.1)
    for _ in range(2):
        backward(model)
        optimizer.step()
    assert heard.words[1:] == ["backward", "step 1", "step 2", "end 2", "end 1"] * 2


def test_a_closure_is_announced_when_it_has_been_run(heard: Heard) -> None:
    model = layer()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.step(lambda: float(backward(model).detach()))
    assert heard.words[1:] == ["step 1", "backward", "evaluated 1", "end 1"]


def test_a_step_that_a_scaler_skips_is_announced_as_skipped(heard: Heard) -> None:
    model = layer()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    for factor in (1.0, float("inf")):
        scaler.scale(model(torch.tensor([[3.0, 4.0]])).sum() * factor).backward()
        scaler.step(optimizer)
        scaler.update()
    made = ["scaled", "backward", "unscaled"]
    assert heard.words[1:] == [*made, "step 1", "end 1", *made, "skipped"]


def test_what_was_wrapped_is_put_back() -> None:
    def wrapped() -> list[Any]:
        return [torch.autograd.backward, torch.autograd.grad, torch.optim.Optimizer.zero_grad, nn.Module.zero_grad,
                nn.utils.clip_grad_norm_, torch.amp.GradScaler.step]  # fmt: skip

    before, listener, patches = wrapped(), Heard(), Patches()
    Moments(listener).install(patches)
    Engine(listener.around).install(patches)
    assert all(one is not other for one, other in zip(before, wrapped(), strict=True))
    patches.undo()
    assert wrapped() == before
    backward(layer())
    assert listener.words == []


def test_scripts_that_are_given_or_walked_through_are_the_readers_and_nothing_else_of_the_rooms() -> None:
    home = Path(sites.__file__).parents[1]
    for room in ("audit", "watch"):
        given = {*(home / room / "examples").glob("*.py"), *(home / room / "walkthrough").glob("*.py")}
        rest = {*(home / room).rglob("*.py")} - given
        assert len(given) > 4
        assert len(rest) > 10
        assert {file for file in given | rest if sites.is_readers(str(file))} == given
