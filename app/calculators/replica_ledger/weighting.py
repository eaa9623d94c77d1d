"""How a scheme weights the cells of a window, and how the sum that it makes compares with the mean over the window.

    (1/reduction) · Σ_r Σ_k multiplier / denominator / accumulation_divisor · G_rk

Every factor lives on one of three levels: the whole window (a scalar), the replicas (P,) or the cells (C,). The sum is
taken on the coarsest level that holds them all, so that a scheme with one factor for the window costs one product.
"""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from samestep.app.calculators.replica_ledger.results import Reference, Result, SchemeResult
from samestep.app.calculators.replica_ledger.schemes import Scheme
from samestep.app.contract.errors import InputError
from samestep.app.contract.limits import MAX_LISTED_CELLS
from samestep.app.contract.models import Reason
from samestep.app.mathematics.window import CELL, REPLICA, WINDOW, Window, as_float, as_text, divided, total


class Weights(NamedTuple):
    """What a scheme multiplies every unit of mass by: `scale / denominator`, each a scalar or one value a replica (P,)
    or a cell (C,), as `level` says; 0 where the denominator is 0 and the scheme leaves empty cells out.

    `scale` is None where the scheme is undefined, with the reason. `loss_reason` says why no loss can be logged though
    the gradient is defined.
    """

    scale: Any
    denominator: Any
    level: int
    reason: Reason | None = None
    loss_reason: Reason | None = None

    def over_cells(self, window: Window) -> NDArray[np.float64]:
        """The weights, one a cell, in float64: (C,)."""
        scale, denominator = (np.asarray(part, dtype=float) for part in (self.scale, self.denominator))
        on_level = scale * divided(np.ones(denominator.shape), denominator)
        on_cells = _lift(on_level, self.level, CELL, window)
        return np.full(len(window.counts), on_cells) if self.level == WINDOW else on_cells

    def gradient(self, window: Window) -> Any:
        """The weighted sum of the cells' gradient sums: a scalar, or (d,)."""
        return self._sum(window, "gradient")

    def loss(self, window: Window) -> Any:
        """The weighted sum of the cells' loss sums; None when the window has no losses."""
        return None if window.loss_sums is None or self.loss_reason else self._sum(window, "loss")

    def are_right(self, window: Window) -> bool:
        """Whether every unit of mass weighs 1/N, within 1e-9 of it where the window is not exact."""
        if self.scale is None or not window.total:
            return False
        masses = (window.total, window.replica_counts, window.counts)[self.level]
        off = self.scale * window.total - self.denominator
        allowed = 0 if window.is_exact else 1e-9 * np.abs(np.asarray(self.denominator, dtype=float))
        return bool(np.all((np.abs(off) <= allowed) | (masses == 0)))

    def _sum(self, window: Window, what: Literal["gradient", "loss"]) -> Any:
        if isinstance(self.scale, np.ndarray):
            sums = window.sums(what, self.level)
            scale = self.scale if sums.ndim == 1 else self.scale[:, None]
            return total(scale * divided(sums, self.denominator))
        return self.scale * window.divided_sum(what, self.level, self.denominator)


class Group(NamedTuple):
    """Schemes that give every window of one shape the same weights, and what of the weights the shape decides:
    `scale` = multiplier / (accumulation_divisor · reduction), on its level."""

    schemes: tuple[Scheme, ...]
    scale: Any
    level: int


def alike(schemes: Iterable[Scheme], window: Window) -> tuple[Group, ...]:
    """Put together what is alike in windows of this shape, so that it is computed once.

    With one microstep a replica, for example, a mean over the cell is one over the replica.
    """
    groups: dict[Hashable, Group] = {}
    for scheme in schemes:
        scale, level = _scale_of(scheme, window)
        denominator = scheme.denominator
        if denominator == "cell" and set(window.sizes) == {1}:
            denominator = "replica"
        shared = level == WINDOW and scheme.regularizer_per == "none"
        key: Hashable = (denominator, scale, scheme.empty_cell) if shared else scheme.name
        known = groups.get(key, Group((), scale, level))
        groups[key] = known._replace(schemes=(*known.schemes, scheme))
    return tuple(groups.values())


def weights(group: Group, window: Window) -> Weights:
    """The weight of a unit of mass; InputError where a table does not fit the window."""
    scheme = group.schemes[0]
    denominator, level = _denominator_of(scheme, window)
    if level < group.level:
        denominator, level = _lift(denominator, level, group.level, window), group.level
    scale = _lift(group.scale, group.level, level, window)
    if window.all_filled(denominator):
        return Weights(scale, denominator, level)
    reason: Reason = "empty_cell" if level != WINDOW and window.total else "zero_count"
    if scheme.empty_cell == "undefined" or _divides_by_zero(scheme, window):
        return Weights(None, denominator, level, reason)
    return Weights(scale, denominator, level, loss_reason=reason if scheme.empty_cell == "zero_gradient" else None)


def _divides_by_zero(scheme: Scheme, window: Window) -> bool:
    """Whether a given denominator is 0 where there is something to divide: that is no empty cell's 0/0."""
    if isinstance(scheme.denominator, str):
        return False
    denominator, level = _denominator_of(scheme, window)
    if level == WINDOW:
        return bool(window.total)
    return bool(np.any((denominator == 0) & (window.counts != 0)))


def _scale_of(scheme: Scheme, window: Window) -> tuple[Any, int]:
    """multiplier / (accumulation_divisor · reduction), and its level; it does not depend on the counts."""
    multiplier, of_multiplier = _multiplier_of(scheme, window)
    divisor, of_divisor = _divisor_of(scheme, window)
    level = max(of_multiplier, of_divisor)
    below = _lift(divisor, of_divisor, level, window) * _reduction_divisor(scheme, window)
    return _lift(multiplier, of_multiplier, level, window) / below, level


def _reduction_divisor(scheme: Scheme, window: Window) -> int | Fraction:
    """What the sum over replicas is divided by: P, 1, or the given number."""
    if isinstance(scheme.reduction, Fraction):
        return scheme.reduction
    return window.replicas if scheme.reduction == "mean" else 1


def _accumulation_divisors(scheme: Scheme, window: Window) -> Any:
    """What every microstep's loss is divided by: a scalar, or one value a replica (P,)."""
    return _divisor_of(scheme, window)[0]


def _denominator_of(scheme: Scheme, window: Window) -> tuple[Any, int]:
    match scheme.denominator:
        case "one":
            return window.one, WINDOW
        case "global":
            return window.total, WINDOW
        case "replica":
            return window.replica_counts, REPLICA
        case "cell":
            return window.counts, CELL
        case _:
            return _given(scheme.denominator, "denominator", scheme, window)


def _multiplier_of(scheme: Scheme, window: Window) -> tuple[Any, int]:
    if scheme.multiplier == "P":
        return window.number(window.replicas), WINDOW
    return _given(scheme.multiplier, "multiplier", scheme, window)


def _divisor_of(scheme: Scheme, window: Window) -> tuple[Any, int]:
    """K_r is one number for the window where all replicas have as many microsteps; without microsteps nothing is
    divided."""
    if isinstance(scheme.accumulation_divisor, Fraction):
        return scheme.accumulation_divisor, WINDOW
    if scheme.accumulation_divisor == "K_max" or window.is_rectangle:
        return max(*window.sizes, 1), WINDOW
    return window.numbers([max(size, 1) for size in window.sizes]), REPLICA


def _given(value: Any, field: str, scheme: Scheme, window: Window) -> tuple[Any, int]:
    if not isinstance(value, tuple):
        return value if window.is_exact else float(value), WINDOW
    if tuple(len(row) for row in value) != window.sizes:
        en = f"the {field} table of scheme “{scheme.name}” needs one number a cell, in the shape of the window"
        zh = f"方案“{scheme.name}”的 {field} 表须与窗口形状相同，每个单元格一个数"
        raise InputError(en, zh, field=("schemes", field), code="shape_mismatch")
    cells = [cell for row in value for cell in row]
    if field == "denominator" and any(cell < 0 for cell in cells):
        en, zh = f"the denominators of scheme “{scheme.name}” must be 0 or more", f"方案“{scheme.name}”的分母不能小于 0"
        raise InputError(en, zh, field=("schemes", field), code="greater_than_equal")
    return window.numbers(cells), CELL


def _lift(value: Any, level: int, target: int, window: Window) -> Any:
    """Values of replicas as values of cells; scalars broadcast by themselves."""
    return window.over_cells(value) if level == REPLICA and target == CELL else value


# ---- what comes of it, beside the mean over the window


@dataclass(frozen=True)
class Step:
    """A plain SGD step: θ − lr·g."""

    theta: Any
    lr: Any

    def after(self, gradient: Any) -> Any:
        if isinstance(gradient, Fraction):  # one rounding, and none of the reductions between
            theta, lr = self.theta, self.lr
            below = lr.denominator * gradient.denominator
            above = theta.numerator * below - lr.numerator * gradient.numerator * theta.denominator
            return above / (theta.denominator * below)
        return None if gradient is None else as_float(self.theta - self.lr * gradient)


@dataclass(frozen=True)
class Added:
    """The regulariser's gradient and value, as the objective holds them once."""

    gradient: Any
    value: Any


def evaluate(
    window: Window, groups: Iterable[Group], step: Step | None, added: Added | None
) -> tuple[Result, dict[str, Weights]]:
    """The result, and the weights behind every scheme."""
    defined = window.total != 0
    target = window.total_gradient / window.total if defined else None
    loss = window.total_loss / window.total if defined and window.loss_sums is not None else None
    if added and defined:
        target, loss = target + added.gradient, None if loss is None else loss + added.value
    grad = as_float(target)
    judge = _Judge(window, grad, step)
    weighting: dict[str, Weights] = {}
    results: dict[str, SchemeResult] = {}
    for group in groups:
        weight = weights(group, window)
        applied = _applied(group.schemes[0], weight, window, added)
        result = judge.result(*applied, weight)
        for scheme in group.schemes:
            weighting[scheme.name], results[scheme.name] = weight, result
    listed = defined and len(window.counts) <= MAX_LISTED_CELLS
    reference = Reference(
        defined=defined,
        grad=grad,
        grad_exact=as_text(target),
        loss=as_float(loss),
        cell_weights=window.nested((window.float_counts / float(window.total)).tolist()) if listed else None,
        theta_after_sgd=step.after(target) if step else None,
        decision="update" if defined else "skip_all_replicas",
        reason=None if defined else "zero_count",
    )
    return Result(N=as_float(window.total), reference=reference, schemes=results), weighting


def _applied(scheme: Scheme, weight: Weights, window: Window, added: Added | None) -> tuple[Any, Any, Reason | None]:
    """Gradient, loss and (where there is neither) the reason, of a scheme."""
    if weight.scale is None:
        return None, None, weight.reason
    gradient, loss = weight.gradient(window), weight.loss(window)
    if added and scheme.regularizer_per != "none":
        times = window.replicas if scheme.regularizer_per == "replica" else _microsteps(scheme, window)
        times = window.number(times) / _reduction_divisor(scheme, window)
        gradient, loss = gradient + times * added.gradient, None if loss is None else loss + times * added.value
    return gradient, loss, None


def _microsteps(scheme: Scheme, window: Window) -> Any:
    """How many times a term counts that every microstep adds, each divided like its loss."""
    return sum(window.numbers(window.sizes) / _accumulation_divisors(scheme, window))


@dataclass(frozen=True)
class _Judge:
    """Compares a scheme's gradient with the reference's."""

    window: Window
    grad: Any
    step: Step | None

    def result(self, gradient: Any, loss: Any, reason: Reason | None, weight: Weights) -> SchemeResult:
        grad = as_float(gradient)
        ratio, cosine, matches = None, None, None
        if grad is not None and self.grad is not None:
            matches = self._matches(grad)
            if isinstance(grad, list):
                cosine = _cosine(grad, self.grad)
            elif self.grad:
                ratio = as_float(grad / self.grad)
            if ratio is None and cosine is None:
                reason = "zero_reference"
        return SchemeResult(
            defined=grad is not None,
            grad=grad,
            grad_exact=as_text(gradient),
            reported_loss=as_float(loss),
            ratio_to_reference=ratio,
            sign_flipped=None if ratio is None else ratio < 0,
            cosine_with_reference=cosine,
            matches_reference=matches,
            theta_after_sgd=self.step.after(gradient) if self.step else None,
            reason=reason,
            loss_reason=weight.loss_reason,
            weights_match=matches and weight.are_right(self.window),
        )

    def _matches(self, grad: Any) -> bool:
        """Equal within 1e-9 of the reference's largest entry (and float64's rounding of the sums, where inexact)."""
        if isinstance(grad, list):
            difference, size = float(np.abs(np.subtract(grad, self.grad)).max()), float(np.abs(self.grad).max())
        else:
            difference, size = abs(grad - self.grad), abs(self.grad)
        if difference <= 1e-9 * size or self.window.is_exact:
            return difference <= 1e-9 * size
        rounding = np.max(self.window.absolute_gradient) / self.window.total
        return difference <= 1e-9 * size + 1e-14 * float(rounding)


def _cosine(a: list[float], b: list[float]) -> float | None:
    """None where either vector is 0."""
    lengths = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(np.dot(a, b)) / lengths if lengths > 0 else None
