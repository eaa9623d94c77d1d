"""A linear warm-up and decay by torch's LambdaLR, whose scheduler is stepped by other clocks than the updates.

Every rank reads the same number of microbatches; a gradient scaler skips the one update whose loss overflows.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from importlib.util import find_spec
from itertools import pairwise
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LambdaLR

from samestep.app.calculators.schedule_clock import Inputs, compute
from samestep.app.evidence.bags import Json, NotMeasured, Row, Text
from samestep.experiments.measured import difference
from samestep.experiments.other_terms.windows import PREDICTED, RANKS, Group
from samestep.experiments.results import row

WINDOW, BATCHES, EPOCHS, SKIPPED = 2, 7, 2, 3
"""Microbatches of a window and of an epoch, whose last window is shorter; epochs; the attempt that overflows."""
WARMUP, TOTAL, BASE = 4, 7, 0.5
WIDTH = 3
ACCELERATE, SETTING = "accelerate", "scheduler"
NOTE: Text = {
    "zh": "AcceleratedScheduler 与 AcceleratedOptimizer，默认设置，每个微批之后都调用。",
    "en": "AcceleratedScheduler and AcceleratedOptimizer, defaults, called after every microbatch.",
}


class Moment(NamedTuple):
    """What a clock may look at after a microbatch: whether a window and an epoch end, and whether a step was made."""

    attempt: bool
    update: bool
    epoch: bool


CLOCKS: dict[str, Callable[[Moment], int]] = {
    "per_update": lambda now: int(now.update),
    "per_attempt": lambda now: int(now.attempt),
    "per_microbatch": lambda now: 1,
    "per_update_times_processes": lambda now: RANKS * int(now.update),
    "per_microbatch_times_processes": lambda now: RANKS,
    "per_epoch": lambda now: int(now.epoch),
}
"""How often the scheduler is stepped after a microbatch."""
RULE = "per_update_times_processes"
"""What accelerate does without `split_batches`."""
TITLES: dict[str, Text] = {
    "per_update": {"zh": "时钟：每次更新一步", "en": "clock: once an update"},
    "per_attempt": {"zh": "时钟：跳过的更新也走", "en": "clock: skipped updates too"},
    "per_microbatch": {"zh": "时钟：每个微批一步", "en": "clock: once a microbatch"},
    "per_update_times_processes": {"zh": "时钟：每次更新 P 步", "en": "clock: P times an update"},
    "per_microbatch_times_processes": {"zh": "时钟：每个微批 P 步", "en": "clock: P times a microbatch"},
    "per_epoch": {"zh": "时钟：每轮一步", "en": "clock: once an epoch"},
    ACCELERATE: {"zh": "时钟：真实的 accelerate", "en": "clock: the real accelerate"},
}


class Course(NamedTuple):
    """The rate at the beginning of every window, the scheduler's count at the end, and the weights."""

    rates: list[float]
    steps: int
    weights: Tensor


def rate(count: int) -> float:
    """The share of the base rate after so many steps of the scheduler."""
    return count / WARMUP if count < WARMUP else max(0.0, (TOTAL - count) / (TOTAL - WARMUP))


def moments() -> Iterator[tuple[int, bool, bool]]:
    """The attempt that every microbatch belongs to, and whether its window and its epoch end with it."""
    attempt = 1
    for _ in range(EPOCHS):
        for place in range(1, BATCHES + 1):
            ends = place % WINDOW == 0 or place == BATCHES
            yield attempt, ends, place == BATCHES
            attempt += int(ends)


def batches() -> Tensor:
    """`batches()[rank][microbatch]`; the loss is linear in the weights, and its gradient these numbers."""
    return torch.randn(RANKS, BATCHES * EPOCHS, WIDTH, generator=torch.Generator().manual_seed(51))


class Trainer:
    """The loop round a model, an optimizer, a scheduler and a scaler; what steps the last three is a subclass's."""

    def __init__(self, group: Group) -> None:
        self.model = nn.Linear(WIDTH, 1, bias=False)
        nn.init.zeros_(self.model.weight)
        self.group = group
        self.sgd = torch.optim.SGD(self.model.parameters(), lr=BASE)
        self.scheduler = LambdaLR(self.sgd, rate)
        self.scaler = GradScaler("cpu")
        self.made = 0
        self.sgd.register_step_post_hook(self._count)

    def _count(self, *_: object) -> None:
        self.made += 1

    def run(self, rank: int) -> Course:
        """The whole run on this rank."""
        replica = DistributedDataParallel(self.model, process_group=self.group)
        rates, begins = [], True
        for (attempt, ends, epoch), x in zip(moments(), batches()[rank], strict=True):
            rates += [self.sgd.param_groups[0]["lr"]] if begins else []
            with contextlib.nullcontext() if ends else replica.no_sync():
                loss = replica(x[None]).sum() * (torch.inf if attempt == SKIPPED and rank == 0 else 1)
                torch.autograd.backward(self.scaler.scale(loss))
            self.after(ends, epoch)
            begins = ends
        return Course(rates, self.scheduler.last_epoch, self.model.weight.detach().clone())

    def after(self, ends: bool, epoch: bool) -> None:
        """After the backward of a microbatch, with which a window or an epoch may end."""
        raise NotImplementedError


class Clocked(Trainer):
    """Torch alone, with the scheduler on one of the clocks."""

    def __init__(self, group: Group, clock: str) -> None:
        super().__init__(group)
        self.ticks = CLOCKS[clock]

    def after(self, ends: bool, epoch: bool) -> None:
        before = self.made
        if ends:
            self.scaler.step(self.sgd)
            self.scaler.update()
            self.sgd.zero_grad()
        for _ in range(self.ticks(Moment(ends, self.made > before, epoch))):
            self.scheduler.step()


class Accelerated(Trainer):
    """accelerate's own wrappers of the optimizer and the scheduler, called after every microbatch as its guide does.

    It takes all processes of the world for data ranks; the world may be larger here, so that it is told their number.
    """

    def __init__(self, group: Group) -> None:
        from accelerate import Accelerator
        from accelerate.optimizer import AcceleratedOptimizer
        from accelerate.scheduler import AcceleratedScheduler
        from accelerate.state import PartialState

        super().__init__(group)
        PartialState(cpu=True)
        PartialState._shared_state["num_processes"] = RANKS
        self.accelerator = Accelerator(cpu=True)
        self.wrapped = AcceleratedOptimizer(self.sgd, device_placement=False, scaler=self.scaler)
        self.stepped = AcceleratedScheduler(self.scheduler, self.wrapped)

    def after(self, ends: bool, epoch: bool) -> None:
        self.accelerator.sync_gradients = ends
        self.wrapped.step()
        self.stepped.step()
        self.wrapped.zero_grad()

    @staticmethod
    def forget() -> None:
        from accelerate.state import AcceleratorState, GradientState

        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()


def measure(case: str, rank: int, group: Group) -> dict[str, Course]:
    """Every clock on this rank, accelerate's own among them where it is installed."""
    found = {name: Clocked(group, name).run(rank) for name in CLOCKS}
    if find_spec(ACCELERATE):
        found[ACCELERATE] = Accelerated(group).run(rank)
        Accelerated.forget()
    return found


def absent(ranks: list[dict[str, Course]]) -> list[NotMeasured]:
    if ACCELERATE in ranks[0]:
        return []
    return [NotMeasured(framework=ACCELERATE, version="", setting=SETTING, reason="not installed")]


def reference() -> Course:
    """One process that has all microbatches: the rate after u updates at every attempt, and no step at the skipped."""
    weights, rates, updates = torch.zeros(WIDTH), [], 0
    sums: dict[int, Tensor] = {}
    for (attempt, _, _), x in zip(moments(), batches().mean(0), strict=True):
        sums[attempt] = sums.get(attempt, torch.zeros(WIDTH)) + x
    for attempt, gradient in sums.items():
        rates.append(BASE * rate(updates))
        if attempt != SKIPPED:
            weights -= rates[-1] * gradient
            updates += 1
    return Course(rates, updates, weights[None])


def calculated(clock: str) -> tuple[list[float], float]:
    """The calculator's rates at the attempts, and its count at the end of the run."""
    body: dict[str, Json] = {"P": RANKS, "K": WINDOW, "batches": BATCHES, "epochs": EPOCHS, "skipped": [SKIPPED]}
    body |= {"warmup": WARMUP, "total": TOTAL, "base_lr": BASE}
    attempts = max(attempt for attempt, _, _ in moments())
    said = [
        cast(Mapping[str, Any], compute(Inputs.model_validate({**body, "update": attempt})).schemes)[clock]
        for attempt in range(1, attempts + 1)
    ]
    return [one.lr_used for one in said], said[-1].final_steps


def rows(case: str, ranks: list[dict[str, Course]]) -> list[Row]:
    """Every clock beside the reference and beside schedule_clock."""
    right = reference()
    return [_row(case, name, [found[name] for found in ranks], right) for name in ranks[0]]


def _row(case: str, name: str, ranks: list[Course], right: Course) -> Row:
    rates, steps = calculated(RULE if name == ACCELERATE else name)
    gap = max(max(_apart(found.rates, rates), abs(found.steps - steps)) for found in ranks)
    made = row(
        case,
        f"clock_{name}",
        TITLES[name],
        "agrees" if name == "per_update" else "differs",
        {
            "weights": max(cast(float, difference(found.weights, right.weights)) for found in ranks),
            "rates": max(_apart(found.rates, right.rates) for found in ranks),
            "calculator": gap,
        },
        expected={"calculator": "agrees"},
        values={"rates": cast(Json, ranks[0].rates), "steps": ranks[0].steps, "right_steps": right.steps},
        also=gap <= PREDICTED and all(torch.equal(one.weights, other.weights) for one, other in pairwise(ranks)),
        note=NOTE if name == ACCELERATE else None,
    )
    if name != ACCELERATE:
        return made
    where = {"framework": ACCELERATE, "version": version(ACCELERATE), "setting": SETTING}
    return {**made, **where}  # type: ignore[typeddict-item]  # so that `verify` knows what a machine cannot repeat


def _apart(one: list[float], other: list[float]) -> float:
    return max(abs(a - b) for a, b in zip(one, other, strict=True))
