"""What a framework's update really weights, who divides by what, and the factor that is missing on the loss.

Words and symbols: see `rules`. `counts[r][k]` = n_rk valid tokens of rank r in microstep k; rows may be
ragged in a partial window. Every division multiplies a token's weight by 1/its count; the weight that the objective (
the mean over all N tokens) demands is 1/N. Hence

    weight of a token     w_rk = loss_factor · Π multiplications / Π divisions
    factor on the loss    f_rk = 1 / (N · w_rk)

f is one number where the loss is a sum, and proportional to n_rk (or n_r, or n_k) where it is a mean. With context
parallelism the rows are the DP × CP ranks: each holds other tokens of the same sequences. A reduction that sums over
the C ranks of a context group and averages over the others divides by P/C. Expert parallelism E: an expert lives on P/E
ranks and gets its tokens' gradients by all-to-all, so that an average over its copies divides by P/E where dense
parameters have P: its gradient is E times too large against theirs. Source: the definition of a mean; the rules are
measured.
"""

from fractions import Fraction

from samestep.app.calculators.framework_recipe.chain import (
    Window,
    expression_of,
    objective_of,
    rule_of,
    shown,
    steps_of,
)
from samestep.app.calculators.framework_recipe.inputs import Inputs, Query
from samestep.app.calculators.framework_recipe.results import Cell, Experts, Reason, Result
from samestep.app.calculators.framework_recipe.rules import (
    releases_of,
    settings_of,
)
from samestep.app.contract.limits import MAX_LISTED_CELLS
from samestep.app.contract.numbers import fraction_text

__all__ = ["Inputs", "Query", "Result", "compute"]


def compute(inputs: Inputs) -> Result:
    """Multiply the divisions of the framework's rule, cell by cell; InputError where a body does not fit."""
    rule, window = rule_of(inputs), Window(inputs)
    steps, total = steps_of(inputs, rule), window.total
    partial = window.longest < window.accumulation
    waits = partial and rule.tail != "steps"
    cells = [
        _cell(r, k, n, Fraction(0) if waits else window.weight(steps, r, k), total, waits)
        for r, row in enumerate(inputs.counts)
        for k, n in enumerate(row)
    ]
    held = [cell for cell in cells if cell.n]
    undefined = any(cell.weight is None for cell in cells)
    defined = bool(total) and not undefined
    weights = {Fraction(cell.weight_exact or 0) for cell in held}
    factors = {cell.factor_exact for cell in held}
    ratio = weights.pop() * total if defined and len(weights) == 1 else None
    factor = factors.pop() if defined and len(factors) == 1 else None
    return Result(
        framework=rule.framework,
        setting=rule.setting,
        release=rule.release,
        releases=releases_of(rule.framework, rule.setting),
        measured_release=inputs.version in (None, rule.release),
        settings=settings_of(rule.framework),
        P=len(inputs.counts),
        K=window.accumulation,
        N=total,
        partial=partial,
        tail=rule.tail,
        your_loss=rule.yours,
        steps=[shown(step, window) for step in steps],
        objective=objective_of(steps, window),
        mass=float(sum((cell.n * Fraction(cell.weight_exact or 0) for cell in held), Fraction(0))) if defined else None,
        ratio=None if ratio is None else float(ratio),
        ratio_exact=None if ratio is None else fraction_text(ratio),
        defined=defined,
        matches_reference=ratio == 1,
        factor_expression=expression_of(steps),
        factor=None if factor is None else float(Fraction(factor)),
        factor_exact=factor,
        cells=cells if len(cells) <= MAX_LISTED_CELLS else None,
        experts=_experts(inputs),
        measured_settings=[one.setting for one in rule.measured],
        source=rule.source,
        reason=_reason(total, undefined, waits),
    )


def _cell(r: int, k: int, n: int, weight: Fraction | None, total: int, waits: bool) -> Cell:
    """One cell; an empty one has no tokens to weight, and a factor exists only where something reaches the update."""
    factor = 1 / (weight * total) if weight and total else None
    return Cell(
        rank=r,
        microstep=k,
        n=n,
        weight=None if weight is None else float(weight),
        weight_exact=None if weight is None else fraction_text(weight),
        right=1 / total if total else None,
        ratio=None if weight is None or not total else float(weight * total),
        factor=None if factor is None else float(factor),
        factor_exact=None if factor is None else fraction_text(factor),
        reason=_reason(total, weight is None, waits),
    )


def _reason(total: int, undefined: bool, waits: bool) -> Reason | None:
    """Why there is no factor: no token at all, a division by 0, or a window that is not stepped."""
    if not total:
        return "zero_count"
    return "empty_cell" if undefined else "not_stepped" if waits else None


def _experts(inputs: Inputs) -> Experts | None:
    if inputs.expert_parallel == 1:
        return None
    size = inputs.expert_parallel
    return Experts(copies=len(inputs.counts) // size, ratio=float(size), factor=f"1/{size}")
