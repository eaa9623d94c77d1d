"""Which clock drives the scheduler: what the learning rate is at an update if it counts something else than updates.

The run, its attempts and the clocks c(a) are those of `clocks`, the rate as a function of the count that of `rates`.
Attempt u (`update`) is made with rate(c(u - 1)), the next one with rate(c(u)); a clock that counts microbatches also
moves inside the window, at whose beginning its rate is given. Names of the clocks:

    per_update                      s          the right one: `scheduler.step()` after a step that was made
    per_attempt                     a          also after a step that an overflow skipped
    per_microbatch                  m          in every microstep of the accumulation
    per_update_times_processes      P·s        accelerate 1.15.0.dev0, `AcceleratedScheduler.step` without split_batches
    per_microbatch_times_processes  P·m        the same without its guard for accumulation
    per_epoch                       ⌊m/M⌋
    per_token                       m/K        in proportion to what was read: a partial window counts in part

An exponential moving average of the weights that the same clock updates keeps β^ticks of its past in one full window,
and half of it for ln ½ / (ticks·ln β) updates, where `ticks` is how often the clock moves in one.

`required_warmup` and `required_total` are what the clock shows when s reaches W and T: the numbers to configure so that
a scheduler on this clock does what was meant. Counts are whole but for per_token, rates exact wherever rational.
"""

import math
from fractions import Fraction
from itertools import pairwise
from typing import Annotated, Literal

from pydantic import Field, model_validator

from samestep.app.calculators.schedule_clock.clocks import Clock, ClockName, Run, Tail, clocks
from samestep.app.calculators.schedule_clock.rates import Beyond, Rate, Schedule, Shape
from samestep.app.contract import models
from samestep.app.contract.errors import InputError
from samestep.app.contract.fields import NonNegative, number, whole_number
from samestep.app.contract.forms import Form, blank_to_none
from samestep.app.contract.limits import MAX_RANKS
from samestep.app.contract.numbers import bounded, fraction_text, whole
from samestep.app.contract.rows import list_of, write_list

MAX_BATCHES = 10**9
MAX_EPOCHS = 10**6
MAX_COUNT = 10**15
MAX_SKIPS = 10_000
CURVE_POINTS = 120
"""So many places of the run are drawn."""

_SMALLEST_DECAY = 1e-300

_REFERENCE: ClockName = "per_update"
_read_attempt = bounded(whole, low=1, high=MAX_COUNT)


def _skips(value: object) -> tuple[int, ...]:
    """Attempts in any order; blank is none."""
    blank = blank_to_none(value) is None or value in ([], ())
    return () if blank else tuple(sorted(list_of(value, _read_attempt, MAX_SKIPS)))


_SKIPS_SCHEMA = {
    "anyOf": [
        {"type": "array", "items": {"type": "integer", "minimum": 1}},
        {"type": "string", "examples": ["3,17"]},
    ]
}

Processes = Annotated[int, whole_number(1, MAX_RANKS)]
Batches = Annotated[int, whole_number(1, MAX_BATCHES)]
Epochs = Annotated[int, whole_number(1, MAX_EPOCHS)]
Count = Annotated[int, whole_number(0, MAX_COUNT)]
Attempt = Annotated[int, whole_number(1, MAX_COUNT)]
Attempts = Annotated[tuple[int, ...], Form("list", _skips, _SKIPS_SCHEMA, write_list, scalar=True)]
Share = Annotated[Fraction, number(low=0, high=1)]


class Inputs(models.Inputs):
    """The run, the schedule as it was configured, and the attempt to look at.

    `batches` are microbatches of one rank in one epoch; `tail` says what becomes of a last window shorter than K.
    `skipped` are attempts, counted from 1, whose step an overflow skipped.
    """

    P: Processes = Field(default=8, examples=[8])
    K: Batches = 1
    batches: Batches = Field(default=1000, examples=[1000])
    epochs: Epochs = 1
    tail: Tail = "update"
    warmup: Count = 100
    total: Count = 1000
    shape: Shape = "linear"
    min_ratio: Share = Fraction(0)
    base_lr: NonNegative = Fraction(1)
    beyond: Beyond = "formula"
    update: Attempt = Field(default=13, examples=[13])
    skipped: Attempts = Field(default=(), examples=[[3, 17]])
    ema_decay: Share = Fraction(999, 1000)

    @model_validator(mode="after")
    def _fits(self) -> "Inputs":
        if self.total < self.warmup:
            en = f"must be at least {self.warmup:,}: the schedule cannot end inside its warm-up"
            raise InputError(
                en, f"不能小于 {self.warmup:,}：调度不能在预热里就结束", field="total", code="greater_than_equal"
            )
        last = self.run.attempts
        if self.update > last:
            en, zh = f"must be at most {last:,}, the last attempt of the run", f"不能大于 {last:,}，即最后一次尝试"
            if not last:
                en, zh = "is outside the run, which has not one full window", "不在训练之内：连一个完整的窗口也没有"
            raise InputError(en, zh, field="update", code="less_than_equal")
        if self.skipped and self.skipped[-1] > last:
            en, zh = (
                f"hold {self.skipped[-1]:,}; the last attempt is {last:,}",
                f"含 {self.skipped[-1]:,}；最后一次尝试是 {last:,}",
            )
            raise InputError(en, zh, field="skipped", code="less_than_equal")
        twice = next((one for one, other in pairwise(self.skipped) if one == other), None)
        if twice is not None:
            raise InputError(f"hold {twice:,} twice", f"里 {twice:,} 出现了两次", field="skipped", code="given_twice")
        return self

    @property
    def run(self) -> Run:
        return Run(self.batches, self.K, self.epochs, self.tail, self.skipped)

    @property
    def schedule(self) -> Schedule:
        return Schedule(self.shape, self.warmup, self.total, self.base_lr, self.min_ratio, self.beyond)


class Query(Inputs, models.Query):
    """The panel has the fields of the body, and shows one of the clocks beside the right one."""

    scheme: ClockName = "per_update_times_processes"


class ClockResult(models.Result):
    """One clock at the chosen attempt, and where it takes the schedule.

    `steps` is what it shows after the attempt, `lr_used` the attempt's own rate, `lr_next` that of the next. Attempts
    and counts that the run does not reach are null (`not_reached`); the ratio is that of `lr_used`, null where the
    right rate is 0. `matches_reference` says whether both rates are the right ones. The two of the moving average are
    null where a full window has no whole number of ticks; the half-life also where β is 1, which forgets nothing.
    """

    defined: bool
    reason: models.Reason | None
    steps: float
    steps_exact: str
    lr_used: float
    lr_used_exact: str | None
    lr_next: float
    lr_next_exact: str | None
    matches_reference: bool
    ratio_to_reference: float | None
    warmup_ends_at: int | None
    decay_ends_at: int | None
    required_warmup: float | None
    required_total: float | None
    final_steps: float
    ticks_per_window: int | None
    ema_effective_decay: float | None
    ema_half_life_updates: float | None


class Result(models.Result):
    """All clocks side by side. `attempts` are the ends of windows, `updates` those with a step, `microsteps` what a
    rank reads in the whole run."""

    attempts: int
    updates: int
    microsteps: int
    schemes: dict[ClockName, ClockResult]

    def tables(self) -> list[models.Table]:
        """One row a clock, then the run."""
        rows = [(name, *(value for _, value in clock)) for name, clock in self.schemes.items()]
        run = [(self.attempts, self.updates, self.microsteps)]
        return [
            models.Table(header=("scheme", *ClockResult.model_fields), rows=rows),
            models.Table(header=("attempts", "updates", "microsteps"), rows=run),
        ]


class Point(models.Result):
    """The rate of one attempt under every clock."""

    attempt: int
    lr: dict[ClockName, float]


class View(Result):
    """What the panel shows: one clock beside the right one, and the rates of some attempts of the run."""

    selected: ClockName
    current: ClockResult
    update: int
    processes: int
    window: int
    warmup: int
    total: int
    curve: list[Point]

    def tables(self) -> list[models.Table]:
        rows = [(point.attempt, *point.lr.values()) for point in self.curve]
        return [*super().tables(), models.Table(header=("attempt", *self.curve[0].lr), rows=rows)]


def compute(inputs: Inputs) -> Result:
    """Every clock at the chosen attempt; in closed form, whatever the length of the run."""
    run, schedule = inputs.run, inputs.schedule
    found = clocks(run, inputs.P)
    right = [schedule.rate(found[_REFERENCE].at(attempt)) for attempt in (inputs.update - 1, inputs.update)]
    return Result(
        attempts=run.attempts,
        updates=run.updates(run.attempts),
        microsteps=run.microsteps,
        schemes={name: _clock(clock, inputs, right) for name, clock in found.items()},
    )


def _clock(clock: Clock, inputs: Inputs, right: list[Rate]) -> ClockResult:
    run, schedule = inputs.run, inputs.schedule
    steps = clock.at(inputs.update)
    used, following = (schedule.rate(clock.at(attempt)) for attempt in (inputs.update - 1, inputs.update))
    ends = [clock.reaches(count, run) for count in (inputs.warmup, inputs.total)]
    required = [clock.when_updates_reach(count, run) for count in (inputs.warmup, inputs.total)]
    ratio = _ratio(used, right[0])
    decay, half_life = _average(inputs.ema_decay, clock.ticks)
    reason: Literal["not_reached", "zero_reference"] | None = None
    if None in ends or None in required:
        reason = "not_reached"
    elif ratio is None:
        reason = "zero_reference"
    return ClockResult(
        defined=True,
        reason=reason,
        steps=float(steps),
        steps_exact=fraction_text(steps),
        lr_used=used.value,
        lr_used_exact=None if used.exact is None else fraction_text(used.exact),
        lr_next=following.value,
        lr_next_exact=None if following.exact is None else fraction_text(following.exact),
        matches_reference=[used, following] == right,
        ratio_to_reference=ratio,
        warmup_ends_at=ends[0],
        decay_ends_at=ends[1],
        required_warmup=None if required[0] is None else float(required[0]),
        required_total=None if required[1] is None else float(required[1]),
        final_steps=float(clock.final),
        ticks_per_window=clock.ticks,
        ema_effective_decay=decay,
        ema_half_life_updates=half_life,
    )


def _ratio(used: Rate, right: Rate) -> float | None:
    """One rate over the right one, None where that is 0."""
    ratio = used.over(right)
    if ratio is not None and not math.isfinite(ratio):
        en, zh = "makes the ratio of two rates leave float64", "使两个学习率之比超出 float64 的范围"
        raise InputError(en, zh, field="min_ratio", code="number_range")
    return ratio


def _average(decay: Fraction, ticks: int | None) -> tuple[float | None, float | None]:
    """β^ticks, and after how many windows half of the past is left."""
    if ticks is None:
        return None, None
    if decay in (0, 1):
        return float(decay), None if decay else 0.0
    log = math.log1p(-float(1 - decay)) if decay > Fraction(1, 2) else math.log(decay)
    if -log * ticks < _SMALLEST_DECAY:
        en, zh = "is so near 1 that its half-life leaves float64", "离 1 太近，半衰期超出 float64 的范围"
        raise InputError(en, zh, field="ema_decay", code="number_range")
    return math.exp(ticks * log), -math.log(2) / (ticks * log)


def present(inputs: Inputs, scheme: str | None = None) -> View:
    """What is shown of a body, with one of the clocks selected: the right one, unless `scheme` names another."""
    result = compute(inputs)
    return View(
        **dict(result),
        **models.selection(result.schemes, scheme),
        update=inputs.update,
        processes=inputs.P,
        window=inputs.K,
        warmup=inputs.warmup,
        total=inputs.total,
        curve=_curve(inputs, result),
    )


def _curve(inputs: Inputs, result: Result) -> list[Point]:
    """Rates at attempts evenly through the run, and at those where something happens."""
    last, found = result.attempts, clocks(inputs.run, inputs.P)
    places = {1 + i * (last - 1) // (CURVE_POINTS - 1) for i in range(CURVE_POINTS)} | {inputs.update}
    for clock in result.schemes.values():
        for end in (clock.warmup_ends_at, clock.decay_ends_at):
            places |= set() if end is None else {min(end + 1, last)}
    rate = inputs.schedule.rate
    return [
        Point(attempt=place, lr={name: rate(clock.at(place - 1)).value for name, clock in found.items()})
        for place in sorted(places)
    ]
