"""A window judged: what every scheme makes of it, against the mean over the window."""

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from samestep.app.calculators.replica_ledger.results import Reference, Result, SchemeResult
from samestep.app.calculators.replica_ledger.weighting import (
    Group,
    Scheme,
    Weights,
    accumulation_divisors,
    reduction_divisor,
    weights,
)
from samestep.app.contract.limits import MAX_LISTED_CELLS
from samestep.app.contract.models import Reason
from samestep.app.mathematics.window import Window, as_float, as_text


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
        times = window.number(times) / reduction_divisor(scheme, window)
        gradient, loss = gradient + times * added.gradient, None if loss is None else loss + times * added.value
    return gradient, loss, None


def _microsteps(scheme: Scheme, window: Window) -> Any:
    """How many times a term counts that every microstep adds, each divided like its loss."""
    return sum(window.numbers(window.sizes) / accumulation_divisors(scheme, window))


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
