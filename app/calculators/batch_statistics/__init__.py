"""Terms that are no sums over tokens: statistics of a batch, taken of the whole window, a rank, a microstep or a cell.

Words and symbols: a window is P ranks × K microsteps, cell (r, k) what one rank sees in one microstep. A statistic of a
batch is not linear in its parts, so that no weights put together what was computed apart: the statistics themselves
must be gathered. `term` says which:

    load_balance  E·Σ f·p of a mixture of experts              see `balancing`
    whiten        (x - mean)/deviation of advantages, say      see `normalising`
    batch_norm    BatchNorm and SyncBatchNorm in training      see `normalising`
    group_norm    channels of a sample cut over shards         see `channels`

The first scheme of each is the reference: all that belongs together, taken together.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from samestep.app.calculators.batch_statistics.balancing import Balanced, Routing, balanced
from samestep.app.calculators.batch_statistics.channels import Normalised, normalised as normalised_channels
from samestep.app.calculators.batch_statistics.groups import Values, values_of
from samestep.app.calculators.batch_statistics.inputs import Inputs, Query, Term, routing_of, samples_of
from samestep.app.calculators.batch_statistics.normalising import (
    Statistics,
    batch_normalising,
    deviations,
    normalised,
    whitening,
)
from samestep.app.calculators.batch_statistics.results import (
    AnyScheme,
    BatchNormScheme,
    GroupNormScheme,
    GroupStatistics,
    LoadBalanceScheme,
    Result,
    Scope,
    View,
    WhitenScheme,
)
from samestep.app.calculators.batch_statistics.running import running
from samestep.app.contract.arrays import Floats
from samestep.app.contract.errors import InputError
from samestep.app.contract.limits import MAX_LISTED_CELLS
from samestep.app.contract.models import Reason, chosen
from samestep.app.mathematics.window import Numbers, as_float, as_text

__all__ = ["Inputs", "Query", "Result", "View", "compute", "present"]

SHOWN_SCOPES, SHOWN_POINTS = 6, 24
"""So much is drawn."""
_SAME = 1e-9
"""Float64 statistics of large windows this near, relatively, are the same."""
_USUAL: dict[Term, str] = {
    "load_balance": "per_rank",
    "whiten": "per_rank",
    "batch_norm": "local",
    "group_norm": "channels_split",
}


def compute(inputs: Inputs) -> Result:
    """Every scheme of the term; InputError where its cells do not fit together."""
    return _computed(inputs)[0]


def present(inputs: Inputs, scheme: str | None = None) -> View:
    """What is shown of a body, with one scheme selected: what is usually done, unless `scheme` names another."""
    result, scopes, tokens = _computed(inputs)
    selected = chosen(result.schemes, scheme or _USUAL[inputs.term])
    reference = next(iter(result.schemes))
    return View(
        **dict(result),
        selected=selected,
        current=result.schemes[selected],
        reference=reference,
        tokens=tokens,
        reference_scopes=scopes(reference),
        scopes=scopes(selected),
    )


def _computed(inputs: Inputs) -> tuple[Result, Callable[[str], list[Scope]], int | None]:
    """The result, what the figure draws of a scheme, and the tokens of load_balance."""
    schemes: dict[str, AnyScheme]
    if inputs.term == "load_balance":
        routing = routing_of(inputs)
        schemes = dict(_load_balance(routing))
        return _result(inputs, schemes, routing.shape), lambda _: [], int(routing.tokens.sum())
    if inputs.term == "group_norm":
        samples, own = samples_of(inputs)
        eps = float(inputs.used_eps)
        found = {
            "whole": normalised_channels(samples, inputs.groups, eps),
            "channels_split": normalised_channels(samples, own * inputs.shards, eps),
        }
        schemes = {name: _group_norm(one, found["whole"]) for name, one in found.items()}
        return _result(inputs, schemes, None, own), lambda name: _channel_scopes(samples, found[name]), None
    values = values_of(inputs.values)
    if inputs.term == "whiten":
        statistics = whitening(values, unbiased=inputs.unbiased)
        schemes = dict(_whiten(values, statistics, inputs))
    else:
        statistics = batch_normalising(values)
        schemes = dict(_batch_norm(values, statistics, inputs))
    unbiased = inputs.term == "whiten" and inputs.unbiased
    result = _result(inputs, schemes, values.shape)
    return result, lambda name: _value_scopes(values, statistics[name], unbiased), None


def _result(
    inputs: Inputs, schemes: dict[str, AnyScheme], shape: tuple[int, int] | None, own: int | None = None
) -> Result:
    ranks, microsteps = shape or (None, None)
    return Result(term=inputs.term, replicas=ranks, microsteps=microsteps, groups_per_shard=own, schemes=schemes)


def _same(one: Numbers, other: Numbers) -> bool:
    if one.dtype == object:
        return bool((one == other).all())
    return bool(np.allclose(one, other, rtol=_SAME, atol=0))


# ---- load_balance


def _load_balance(routing: Routing) -> dict[str, LoadBalanceScheme]:
    found = balanced(routing)
    return {name: _balance(scheme, found["global"], routing) for name, scheme in found.items()}


def _balance(scheme: Balanced | Reason, right: Balanced | Reason, routing: Routing) -> LoadBalanceScheme:
    if isinstance(scheme, str) or isinstance(right, str):
        reason = scheme if isinstance(scheme, str) else None
        return LoadBalanceScheme(defined=False, reason=reason, matches_reference=False)
    filled = routing.tokens > 0
    listed = scheme.gradients.size <= MAX_LISTED_CELLS
    return LoadBalanceScheme(
        defined=True,
        reason=None if right.value else "zero_reference",
        matches_reference=_same(scheme.gradients[filled], right.gradients[filled]),
        value=as_float(scheme.value),
        value_exact=as_text(scheme.value),
        ratio_to_reference=as_float(scheme.value / right.value) if right.value else None,
        probability_gradients=_by_cell(as_float(scheme.gradients), routing) if listed else None,
        probability_gradients_exact=(
            _by_cell([as_text(row) for row in scheme.gradients], routing) if routing.is_exact else None
        ),
        products=as_float(scheme.products) if listed else None,
    )


def _by_cell(rows: list[Any], routing: Routing) -> list[list[Any]]:
    width = routing.shape[1]
    return [rows[start : start + width] for start in range(0, len(rows), width)]


# ---- whiten and batch_norm


def _in_float64(statistics: Numbers) -> Floats:
    """Variances as float64; InputError where one that is not 0 would be."""
    found: Floats = np.array(as_float(statistics), dtype=np.float64)
    if ((found == 0) & (statistics != 0)).any():
        en, zh = "are too near to each other for float64", "彼此太近，float64 表示不了方差"
        raise InputError(en, zh, field="values", code="number_range")
    return found


def _agree(values: Values, one: Statistics, right: Statistics, *, unbiased: bool) -> bool:
    """Whether every value is normalised with the right mean and variance."""
    filled = values.sizes > 0
    pairs = ((one.means, right.means), (one.variances(unbiased), right.variances(unbiased)))
    return all(_same(a[one.of_cell[filled]], b[right.of_cell[filled]]) for a, b in pairs)


def _whiten(values: Values, statistics: dict[str, Statistics], inputs: Inputs) -> dict[str, WhitenScheme]:
    right = statistics["global"]
    known = {name: _whitened(values, one, inputs) for name, one in statistics.items()}
    return {
        name: _whiten_scheme(values, one, right, known[name], known["global"][0], inputs)
        for name, one in statistics.items()
    }


def _whitened(values: Values, statistics: Statistics, inputs: Inputs) -> tuple[Floats, list[Reason | None]]:
    """All values, NaN in groups that cannot be whitened, and the reason of each group."""
    variances = statistics.variances(inputs.unbiased)
    divisors = deviations(_in_float64(variances), float(inputs.used_eps), inside=inputs.eps_place == "inside")
    reasons: list[Reason | None] = [
        reason or ("zero_variance" if divisor == 0 else None)
        for reason, divisor in zip(statistics.reasons, divisors.tolist(), strict=True)
    ]
    known = np.array([reason is None for reason in reasons])
    with np.errstate(all="ignore"):
        found = normalised(values, statistics, np.where(known, divisors, np.nan))
    return found, reasons


def _whiten_scheme(
    values: Values,
    statistics: Statistics,
    right: Statistics,
    own: tuple[Floats, list[Reason | None]],
    reference: Floats,
    inputs: Inputs,
) -> WhitenScheme:
    whitened, reasons = own
    reason = next((one for one in reasons if one), None)
    has_mean = [one != "empty_cell" for one in reasons]
    has_variance = [one in (None, "zero_variance") for one in reasons]
    variances = statistics.variances(inputs.unbiased)
    if not len(values.flat):
        reason = "zero_count"
    listed = max(len(values.flat), len(reasons)) <= MAX_LISTED_CELLS
    return WhitenScheme(
        defined=reason is None,
        reason=reason,
        matches_reference=reason is None and _agree(values, statistics, right, unbiased=inputs.unbiased),
        means=_where(has_mean, as_float(statistics.means)) if listed else None,
        means_exact=_where(has_mean, as_text(statistics.means)) if values.is_exact else None,
        variances=_where(has_variance, as_float(variances)) if listed else None,
        variances_exact=_where(has_variance, as_text(variances)) if values.is_exact else None,
        whitened=_whitened_cells(values, statistics, whitened, reasons) if listed else None,
        max_abs_difference=_farthest(whitened, reference),
    )


def _where(known: list[bool], column: list[Any]) -> list[Any]:
    return [value if there else None for there, value in zip(known, column, strict=True)]


def _whitened_cells(
    values: Values, statistics: Statistics, flat: Floats, reasons: list[Reason | None]
) -> list[list[Any]] | None:
    """[r][k], null for the cells of a group that cannot be whitened; null altogether where none can."""
    if all(reasons):
        return None
    cells = [cell for row in values.nested(flat.tolist()) for cell in row]
    known = [reasons[group] is None for group in statistics.of_cell.tolist()]
    return values.by_cell(_where(known, cells))


def _farthest(one: Floats, other: Floats) -> float | None:
    """The largest distance; None where a value of either is missing, or there are none."""
    if not one.size or not (np.isfinite(one).all() and np.isfinite(other).all()):
        return None
    return float(np.abs(one - other).max())


def _batch_norm(values: Values, statistics: dict[str, Statistics], inputs: Inputs) -> dict[str, BatchNormScheme]:
    right = statistics["whole_window"]
    reference = None if right.reason else _batch_normalised(values, right, inputs)
    return {name: _batch_norm_scheme(values, one, right, reference, inputs) for name, one in statistics.items()}


def _batch_normalised(values: Values, statistics: Statistics, inputs: Inputs) -> Floats:
    return normalised(values, statistics, deviations(_in_float64(statistics.biased), float(inputs.used_eps)))


def _batch_norm_scheme(
    values: Values, statistics: Statistics, right: Statistics, reference: Floats | None, inputs: Inputs
) -> BatchNormScheme:
    if statistics.reason is not None:
        reason = statistics.reason if values.sizes.sum() else "zero_count"
        return BatchNormScheme(defined=False, reason=reason, matches_reference=False)
    found = _batch_normalised(values, statistics, inputs)
    by_cell = statistics.of_cell
    mean, variance = statistics.means[by_cell], statistics.biased[by_cell]
    updates = 1 if statistics is right else values.shape[1]
    means, variances = running(values, statistics, updates, inputs)
    listed = max(len(values.flat), len(by_cell)) <= MAX_LISTED_CELLS
    exact = values.is_exact
    return BatchNormScheme(
        defined=True,
        reason=None,
        matches_reference=right.reason is None and _agree(values, statistics, right, unbiased=False),
        mean=values.by_cell(as_float(mean)) if listed else None,
        mean_exact=values.by_cell(as_text(mean)) if exact else None,
        variance=values.by_cell(as_float(variance)) if listed else None,
        variance_exact=values.by_cell(as_text(variance)) if exact else None,
        normalised=values.nested(found.tolist()) if listed else None,
        max_abs_difference=None if reference is None else _farthest(found, reference),
        running_mean=as_float(means),
        running_mean_exact=as_text(means),
        running_var=as_float(variances),
        running_var_exact=as_text(variances),
    )


def _value_scopes(values: Values, statistics: Statistics, unbiased: bool) -> list[Scope]:
    """The first groups with some of their values."""
    shown = range(min(len(statistics.means), SHOWN_SCOPES))
    variances = statistics.variances(unbiased)
    ranks = values.shape[0]
    whole, by_rank = len(statistics.means) == 1, len(statistics.means) == ranks
    scopes = []
    for g in shown:
        cells = np.flatnonzero(statistics.of_cell == g)
        points = values.flat[np.isin(values.cells, cells)][:SHOWN_POINTS]
        known = statistics.reasons[g] is None
        label = "" if whole else f"rank {g}" if by_rank else str(g)
        scopes.append(
            Scope(
                label=label,
                points=[float(point) for point in points],
                mean=float(statistics.means[g]) if statistics.counts[g] else None,
                deviation=float(np.sqrt(float(variances[g]))) if known else None,
            )
        )
    return scopes


# ---- group_norm


def _group_norm(one: Normalised, right: Normalised) -> GroupNormScheme:
    missing = ~np.isfinite(one.values)
    listed = one.values.size <= MAX_LISTED_CELLS
    difference = _farthest(one.values, right.values)
    return GroupNormScheme(
        defined=not missing.any(),
        reason="zero_variance" if missing.any() else None,
        matches_reference=difference == 0,
        groups=one.means.shape[1],
        statistics=_group_statistics(one) if listed else None,
        normalised=[
            [None if gap else value for value, gap in zip(row, gaps, strict=True)]
            for row, gaps in zip(one.values.tolist(), missing.tolist(), strict=True)
        ]
        if listed
        else None,
        max_abs_difference=difference,
    )


def _group_statistics(one: Normalised) -> list[list[GroupStatistics]]:
    return [
        [
            GroupStatistics(
                mean=as_float(mean),
                mean_exact=as_text(mean),
                variance=as_float(variance),
                variance_exact=as_text(variance),
            )
            for mean, variance in zip(means, variances, strict=True)
        ]
        for means, variances in zip(one.means, one.variances, strict=True)
    ]


def _channel_scopes(samples: Numbers, one: Normalised) -> list[Scope]:
    """The groups of the first samples."""
    parts = samples.reshape(len(samples), one.means.shape[1], -1)
    places = [(s, g) for s in range(parts.shape[0]) for g in range(parts.shape[1])][:SHOWN_SCOPES]
    return [
        Scope(
            label=f"{s}.{g}" if parts.shape[1] > 1 else str(s),
            points=[float(value) for value in parts[s, g, :SHOWN_POINTS]],
            mean=float(one.means[s, g]),
            deviation=float(np.sqrt(float(one.variances[s, g]))),
        )
        for s, g in places
    ]
