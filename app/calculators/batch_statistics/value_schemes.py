"""Whitening and batch normalisation as the answer and the figure have them."""

from typing import Any

import numpy as np

from samestep.app.calculators.batch_statistics.groups import Values, farthest, same
from samestep.app.calculators.batch_statistics.inputs import Inputs
from samestep.app.calculators.batch_statistics.normalising import Statistics, deviations, normalised
from samestep.app.calculators.batch_statistics.results import (
    SHOWN_POINTS,
    SHOWN_SCOPES,
    BatchNormScheme,
    Scope,
    WhitenScheme,
)
from samestep.app.calculators.batch_statistics.running import running
from samestep.app.contract.arrays import Floats
from samestep.app.contract.errors import InputError
from samestep.app.contract.limits import MAX_LISTED_CELLS
from samestep.app.contract.models import Reason
from samestep.app.mathematics.window import Numbers, as_float, as_text


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
    return all(same(a[one.of_cell[filled]], b[right.of_cell[filled]]) for a, b in pairs)


def whiten(values: Values, statistics: dict[str, Statistics], inputs: Inputs) -> dict[str, WhitenScheme]:
    """Every scheme of whitening beside that of the window."""
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
        max_abs_difference=farthest(whitened, reference),
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


def batch_norm(values: Values, statistics: dict[str, Statistics], inputs: Inputs) -> dict[str, BatchNormScheme]:
    """Every scheme of batch normalisation beside that of the window."""
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
        max_abs_difference=None if reference is None else farthest(found, reference),
        running_mean=as_float(means),
        running_mean_exact=as_text(means),
        running_var=as_float(variances),
        running_var_exact=as_text(variances),
    )


def value_scopes(values: Values, statistics: Statistics, unbiased: bool) -> list[Scope]:
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
