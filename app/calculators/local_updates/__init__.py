"""Local SGD and DiLoCo against synchronous steps: what every rule that brings replicas together makes of one number.

Words and symbols: replica r minimises ½·a_r·(θ - t_r)² by SGD with the rate η (`inner_lr`) for H steps (`local_steps`)
in each of R `rounds`; its weight is w_r = samples_r/Σ samples. From the shared θ of a round it arrives at e_r.

    synchronous           θ ← θ - η·Σ w_r·∇_r(θ) in every step     the right one
    synchronous_uniform   the same with 1/P for w_r
    local_mean            θ ← Σ e_r/P                 federated averaging without counts
    local_weighted        θ ← Σ w_r·e_r               FedAvg, as Flower 00cd859 aggregates (`aggregate.py`)
    outer                 Δ = θ - Σ e_r/P;  b ← μ·b + Δ;  θ ← θ - α·(Δ + μ·b), without Nesterov θ ← θ - α·b
    outer_weighted        the same with w_r for 1/P    (DiLoCo, Douillard et al., arXiv 2311.08105, algorithm 1)
    outer_momentum_reset  outer_weighted with b ← Δ in every round: a buffer that is not kept
    outer_sign_flipped    outer_weighted with Σ w_r·e_r - θ for Δ

α, μ are `outer_lr` and `outer_momentum`, the step that of `torch.optim.SGD`. Everything is a composition of affine
maps (see `runs`): in exact fractions up to EXACT_STEPS steps, else in float64.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any, Generic

import numpy as np
from pydantic import Field, model_validator

from samestep.app.calculators.local_updates.results import (
    SCHEMES,
    Averages,
    Replica,
    Result,
    Round,
    SchemeName,
    SchemeResult,
    View,
)
from samestep.app.calculators.local_updates.runs import Affine, Number, Outer, averaged, averaged_steps, mean, repeated
from samestep.app.contract.errors import InputError
from samestep.app.contract.fields import Flag, NonNegative, Real, number, numbers, whole_number, whole_numbers
from samestep.app.contract.limits import MAX_EXACT_CELLS, MAX_LISTED_CELLS, MAX_RANKS
from samestep.app.contract.models import Inputs as InputsBase, Query as QueryBase, chosen
from samestep.app.contract.numbers import fraction_text, not_negative

__all__ = ["Inputs", "Query", "Result", "View", "compute", "present"]

MAX_STEPS = 10**5
MAX_SAMPLES = 10**12
EXACT_STEPS = 64
_EXACT_BITS = 32_768
"""Fractions whose denominators may grow beyond this are left to float64."""
_SAME = 1e-9
_LARGEST = sys.float_info.max
SHOWN_ROUNDS = 12
SHOWN_REPLICAS = 4
_SHOWN_POINTS = 12

Targets = Annotated[tuple[Fraction, ...], numbers(most=MAX_RANKS)]
Curvatures = Annotated[tuple[Fraction, ...] | None, numbers(not_negative, most=MAX_RANKS, minimum=0).optional()]
Samples = Annotated[tuple[int, ...] | None, whole_numbers(0, MAX_SAMPLES).optional()]
Count = Annotated[int, whole_number(1, MAX_STEPS)]
Decay = Annotated[Fraction | None, number(low=0, high=1).optional()]


class Inputs(InputsBase):
    """The replicas (curvatures and samples 1 each where they are blank), the inner run and the outer step."""

    targets: Targets = Field(default=(2, -1), validate_default=True, examples=[[2, -1]])
    curvatures: Curvatures = Field(default=None, examples=[[1, 3]])
    samples: Samples = Field(default=None, examples=[[100, 300]])
    theta0: Real = Fraction(0)
    inner_lr: NonNegative = Fraction(1, 10)
    local_steps: Count = 4
    rounds: Count = 1
    outer_lr: NonNegative = Fraction(1)
    outer_momentum: NonNegative = Fraction(0)
    nesterov: Flag = True
    ema_decay: Decay = None

    @model_validator(mode="after")
    def _fits(self) -> "Inputs":
        replicas = len(self.targets)
        for name in ("curvatures", "samples"):
            given = getattr(self, name)
            if given is not None and len(given) != replicas:
                en = f"need one entry a replica: there are {replicas:,} targets and {len(given):,} entries"
                zh = f"应每个副本一项：目标有 {replicas:,} 个，这里有 {len(given):,} 项"
                raise InputError(en, zh, field=name, code="shape_mismatch")
        if self.samples is not None and not any(self.samples):
            raise InputError(
                "are all 0: no replica has a weight", "全为 0：没有一个副本有权重", field="samples", code="zero_count"
            )
        if self.local_steps * self.rounds > MAX_STEPS:
            en = f"make more than {MAX_STEPS:,} steps, local_steps times rounds"
            zh = f"使 local_steps × rounds 超过 {MAX_STEPS:,} 步"
            raise InputError(en, zh, field="rounds", code="less_than_equal")
        return self


class Query(Inputs, QueryBase):
    """The panel has the fields of the body, opens with two replicas that want different things, and shows one rule."""

    curvatures: Curvatures = Field(default="1,3", validate_default=True)
    samples: Samples = Field(default="1,1", validate_default=True)
    rounds: Count = 3
    outer_lr: NonNegative = Fraction(7, 10)
    outer_momentum: NonNegative = Fraction(9, 10)
    scheme: SchemeName = "outer"


@dataclass(frozen=True)
class _Problem(Generic[Number]):
    """The replicas' step maps and everything else in one kind of number."""

    step: list[Affine[Number]]
    weights: list[Number]
    uniform: list[Number]
    start: Number
    local_steps: int
    rounds: int
    outer_lr: Number
    outer_momentum: Number
    nesterov: bool
    decay: Number | None

    @property
    def ends(self) -> list[Affine[Number]]:
        """What each replica makes of the start of a round."""
        return [one.power(self.local_steps) for one in self.step]

    def outer(self, sign: int = 1, keeps: bool = True) -> Outer[Number]:
        return Outer(self.outer_lr, self.outer_momentum, self.nesterov, sign, keeps)

    def paths(self) -> dict[SchemeName, list[Number]]:
        """θ after each round, by every rule."""
        ends, start, rounds = self.ends, self.start, self.rounds
        uniform, weighted = mean(ends, self.uniform), mean(ends, self.weights)
        together, alike = (mean(self.step, w).power(self.local_steps) for w in (self.weights, self.uniform))
        return {
            "synchronous": repeated(start, together, rounds),
            "synchronous_uniform": repeated(start, alike, rounds),
            "local_mean": repeated(start, uniform, rounds),
            "local_weighted": repeated(start, weighted, rounds),
            "outer": self.outer().path(start, uniform, rounds),
            "outer_weighted": self.outer().path(start, weighted, rounds),
            "outer_momentum_reset": self.outer(keeps=False).path(start, weighted, rounds),
            "outer_sign_flipped": self.outer(sign=-1).path(start, weighted, rounds),
        }

    def averages(self, paths: dict[SchemeName, list[Number]]) -> dict[str, Number] | None:
        """The moving averages of the run, all from θ₀ on; None without a decay."""
        if self.decay is None:
            return None
        start, decay, shared = self.start, self.decay, paths["local_weighted"]
        together = averaged_steps(mean(self.step, self.weights), self.local_steps, decay)
        own = [averaged_steps(one, self.local_steps, decay) for one in self.step]
        every = mean([one.average for one in own], self.weights)
        once, pooled, begin = start, start, start
        for end in shared:
            once = decay * once + (1 - decay) * end
            pooled, begin = own[0].kept * pooled + every(begin), end
        return {
            "of_synchronous": averaged(start, paths["synchronous"], together),
            "replica_zero": averaged(start, shared, own[0]),
            "weighted_mean_over_replicas": pooled,
            "once_a_round": once,
        }


def _exactly(inputs: Inputs) -> _Problem[Fraction]:
    replicas, eta = len(inputs.targets), inputs.inner_lr
    curvatures = inputs.curvatures or (Fraction(1),) * replicas
    samples = inputs.samples or (1,) * replicas
    return _Problem(
        step=[Affine(eta * a * t, 1 - eta * a) for a, t in zip(curvatures, inputs.targets, strict=True)],
        weights=[Fraction(n, sum(samples)) for n in samples],
        uniform=[Fraction(1, replicas)] * replicas,
        start=inputs.theta0,
        local_steps=inputs.local_steps,
        rounds=inputs.rounds,
        outer_lr=inputs.outer_lr,
        outer_momentum=inputs.outer_momentum,
        nesterov=inputs.nesterov,
        decay=inputs.ema_decay,
    )


def _in_float64(exact: _Problem[Fraction]) -> _Problem[float]:
    return _Problem(
        step=[Affine(float(one.shift), float(one.slope)) for one in exact.step],
        weights=list(map(float, exact.weights)),
        uniform=list(map(float, exact.uniform)),
        start=float(exact.start),
        local_steps=exact.local_steps,
        rounds=exact.rounds,
        outer_lr=float(exact.outer_lr),
        outer_momentum=float(exact.outer_momentum),
        nesterov=exact.nesterov,
        decay=None if exact.decay is None else float(exact.decay),
    )


def _stays_small(problem: _Problem[Fraction]) -> bool:
    """Whether the fractions are few and short enough to be carried through the run."""
    steps_in_all = problem.local_steps * problem.rounds
    if steps_in_all > EXACT_STEPS or steps_in_all * len(problem.step) > MAX_EXACT_CELLS:
        return False
    denominators = {part.denominator for one in problem.step for part in (one.shift, one.slope)}
    once_a_round = (problem.outer_lr, problem.outer_momentum, problem.weights[0], problem.decay or Fraction(0))
    bits = sum(map(int.bit_length, denominators)) * steps_in_all
    bits += sum(part.denominator.bit_length() for part in once_a_round) * steps_in_all
    return bits <= _EXACT_BITS


@np.errstate(all="ignore")
def compute(inputs: Inputs) -> Result:
    """Every rule on the same replicas; InputError where a number leaves float64."""
    exact = _exactly(inputs)
    return _result(exact, inputs) if _stays_small(exact) else _result(_in_float64(exact), inputs)


def present(inputs: Inputs, scheme: str | None = None) -> View:
    """What is shown of a body, with one of the rules selected: the synchronous one, unless `scheme` names another."""
    result = compute(inputs)
    selected = chosen(SCHEMES, scheme)
    problem = _in_float64(_exactly(inputs))
    return View(
        **dict(result),
        selected=selected,
        current=result.schemes[selected],
        start=problem.start,
        local_steps=inputs.local_steps,
        rounds=inputs.rounds,
        replicas=_replicas(inputs, result),
        shown=_shown_rounds(problem, selected),
    )


def _result(problem: _Problem[Number], inputs: Inputs) -> Result:
    start, weights = problem.start, problem.weights
    paths = problem.paths()
    deltas = [start - end(start) for end in problem.ends]
    beyond = [name for name, path in paths.items() if not all(abs(one) <= _LARGEST for one in path)]
    if beyond:
        raise _too_far(inputs, beyond)
    averages = problem.averages(paths)
    schemes = {name: _scheme(name, path, paths["synchronous"], problem) for name, path in paths.items()}
    return Result(
        deltas=list(map(float, deltas)),
        deltas_exact=_texts(deltas),
        weights=list(map(float, weights)),
        weights_exact=_texts(weights),
        schemes=schemes,
        ema=None if averages is None else _averages(averages),
    )


def _averages(found: dict[str, Number]) -> Averages:
    fields: dict[str, Any] = {name: float(value) for name, value in found.items()}
    fields |= {f"{name}_exact": _text(value) for name, value in found.items()}
    return Averages(**fields)


def _too_far(inputs: Inputs, beyond: list[SchemeName]) -> InputError:
    """Names the inner rate where it makes a replica's steps grow, the outer step where its rule leaves float64, and
    the length of the run where only the turned sign does, which grows by itself."""
    if any(inputs.inner_lr * a > 2 for a in inputs.curvatures or (1,)):
        field = "inner_lr"
    elif beyond == ["outer_sign_flipped"]:
        field = "rounds"
    else:
        field = "outer_momentum" if inputs.outer_momentum > 1 else "outer_lr"
    en, zh = f"takes θ of {beyond[0]} out of float64's range", f"使 {beyond[0]} 的 θ 超出 float64 的范围"
    return InputError(en, zh, field=field, code="number_range")


def _scheme(name: SchemeName, path: list[Number], right: list[Number], problem: _Problem[Number]) -> SchemeResult:
    final, difference, moved = path[-1], path[-1] - right[-1], right[-1] - problem.start
    progress = (final - problem.start) / moved if moved else None
    each_step = name in ("synchronous", "synchronous_uniform")
    return SchemeResult(
        defined=True,
        reason="zero_reference" if progress is None else None,
        matches_reference=_same(path, right, problem),
        path=list(map(float, path)) if len(path) <= MAX_LISTED_CELLS else None,
        final=float(final),
        final_exact=_text(final),
        difference=float(difference),
        difference_exact=_text(difference),
        progress_ratio=None if progress is None else float(progress),
        reductions=problem.rounds * (problem.local_steps if each_step else 1),
    )


def _same(path: Sequence[Number], right: Sequence[Number], problem: _Problem[Number]) -> bool:
    """Whether every round ends at the same place: exactly, or in float64 within rounding."""
    if isinstance(path[0], Fraction):
        return path == right
    size = max(abs(problem.start), *(abs(one) for one in right))
    return all(abs(one - other) <= _SAME * size for one, other in zip(path, right, strict=True))


def _text(value: Fraction | float) -> str | None:
    return fraction_text(value) if isinstance(value, Fraction) else None


def _texts(values: Sequence[Number]) -> list[str] | None:
    return [text for value in values if (text := _text(value)) is not None] or None


def _replicas(inputs: Inputs, result: Result) -> list[Replica]:
    curvatures = inputs.curvatures or (Fraction(1),) * len(inputs.targets)
    shown = zip(inputs.targets, curvatures, result.weights, result.deltas, strict=True)
    return [
        Replica(target=float(t), curvature=float(a), weight=w, delta=delta)
        for (t, a, w, delta), _ in zip(shown, range(SHOWN_REPLICAS), strict=False)
    ]


def _shown_rounds(problem: _Problem[float], selected: SchemeName) -> list[Round]:
    """The first rounds of the selected rule beside the synchronous run; its replicas, where they go by themselves."""
    paths = problem.paths()
    begins = [problem.start, *paths[selected]]
    rights = [problem.start, *paths["synchronous"]]
    weights = problem.uniform if selected == "synchronous_uniform" else problem.weights
    each_step = selected in ("synchronous", "synchronous_uniform")
    apart = [mean(problem.step, weights)] if each_step else problem.step[:SHOWN_REPLICAS]
    last = problem.local_steps
    places = sorted({last * i // _SHOWN_POINTS for i in range(_SHOWN_POINTS + 1)})
    together = mean(problem.step, problem.weights)
    return [
        Round(
            steps=[k * last + place for place in places],
            synchronous=[_advanced(together, place, rights[k]) for place in places],
            replicas=[[_advanced(one, place, begins[k]) for place in places] for one in apart],
            begin=begins[k],
            end=begins[k + 1],
        )
        for k in range(min(problem.rounds, SHOWN_ROUNDS))
    ]


def _advanced(step: Affine[float], times: int, start: float) -> float:
    return step.power(times)(start) if times else start
