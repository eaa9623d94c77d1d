"""Runs of several replicas on quadratics: every step, and so every round, is an affine map of one number.

Words and symbols: replica r has the gradient a_r·(θ - t_r), so that its step of rate η is the map

    T_r(θ) = η·a_r·t_r + (1 - η·a_r)·θ

A synchronous step is the weighted mean of these maps, Σ w_r·T_r, and H of them are its power; a local round is the
weighted mean of the powers, Σ w_r·T_r^H. A step that is a mean of maps and a mean of their powers are the same for
H = 1 or equal curvatures, and else differ by what the replicas drift apart.

All of it works on exact fractions and on float64 alike; powers are taken by doubling, so that a round costs as many
steps as its length has bits.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Generic, TypeVar

Number = TypeVar("Number", Fraction, float)


@dataclass(frozen=True)
class Affine(Generic[Number]):
    """The map x → shift + slope·x."""

    shift: Number
    slope: Number

    def __call__(self, x: Number) -> Number:
        return self.shift + self.slope * x

    def then(self, later: "Affine[Number]") -> "Affine[Number]":
        """This map first."""
        return Affine(later.shift + later.slope * self.shift, later.slope * self.slope)

    def power(self, times: int) -> "Affine[Number]":
        """The map `times` ≥ 1 times in a row."""
        half = self if times < 4 else self.power(times // 2)
        twice = half.then(half) if times > 1 else half
        return twice.then(self) if times % 2 and times > 1 else twice


def mean(maps: Sequence[Affine[Number]], weights: Sequence[Number]) -> Affine[Number]:
    """Σ w_r·T_r; the weights add up to 1."""
    pairs = list(zip(weights, maps, strict=True))
    zero = weights[0] - weights[0]
    shift, slope = (sum((w * part for w, part in parts), zero) for parts in _columns(pairs))
    return Affine(shift, slope)


def _columns(pairs: list[tuple[Number, Affine[Number]]]) -> list[list[tuple[Number, Number]]]:
    return [[(w, one.shift) for w, one in pairs], [(w, one.slope) for w, one in pairs]]


@dataclass(frozen=True)
class Steps(Generic[Number]):
    """Some equal steps in a row: where they lead (`end`), and what a moving average with the decay β gathers on the way
    (`average`): e becomes kept·e + average(θ), with kept = β^steps and θ the place before the first step."""

    end: Affine[Number]
    average: Affine[Number]
    kept: Number

    def then(self, later: "Steps[Number]") -> "Steps[Number]":
        gathered = self.end.then(later.average)
        average = Affine(
            later.kept * self.average.shift + gathered.shift, later.kept * self.average.slope + gathered.slope
        )
        return Steps(self.end.then(later.end), average, self.kept * later.kept)

    def after(self, average: Number, start: Number) -> Number:
        """The moving average after these steps."""
        return self.kept * average + self.average(start)

    def power(self, times: int) -> "Steps[Number]":
        """These steps `times` ≥ 1 times in a row."""
        half = self if times < 4 else self.power(times // 2)
        twice = half.then(half) if times > 1 else half
        return twice.then(self) if times % 2 and times > 1 else twice


def averaged_steps(step: Affine[Number], times: int, decay: Number) -> Steps[Number]:
    """`times` ≥ 1 equal steps, the moving average taken after each."""
    rest = 1 - decay
    return Steps(step, Affine(rest * step.shift, rest * step.slope), decay).power(times)


@dataclass(frozen=True)
class Outer(Generic[Number]):
    """An outer step of SGD on the pseudo-gradient Δ = θ - mean of the ends. `sign` -1 is that of ends - θ; without
    `keeps` the momentum buffer starts afresh in every round."""

    lr: Number
    momentum: Number
    nesterov: bool
    sign: int = 1
    keeps: bool = True

    def path(self, start: Number, a_round: Affine[Number], rounds: int) -> list[Number]:
        """θ after each round; `a_round` maps the shared start of a round to the mean of its ends."""
        position, found = start, []
        buffer = start - start
        for _ in range(rounds):
            delta = self.sign * (position - a_round(position))
            buffer = self.momentum * buffer + delta if self.keeps else delta
            position -= self.lr * (delta + self.momentum * buffer if self.nesterov else buffer)
            found.append(position)
        return found


def repeated(start: Number, a_round: Affine[Number], rounds: int) -> list[Number]:
    """The shared parameter after each round."""
    found = []
    for _ in range(rounds):
        start = a_round(start)
        found.append(start)
    return found


def averaged(start: Number, path: Sequence[Number], along: Steps[Number]) -> Number:
    """A moving average over every step of a run whose rounds begin at `start` and at `path`."""
    average, begin = start, start
    for end in path:
        average, begin = along.after(average, begin), end
    return average
