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

from samestep.app.calculators.batch_statistics.balance_schemes import load_balance
from samestep.app.calculators.batch_statistics.channel_schemes import channel_scopes, group_norm
from samestep.app.calculators.batch_statistics.channels import normalised
from samestep.app.calculators.batch_statistics.groups import values_of
from samestep.app.calculators.batch_statistics.inputs import Inputs, Term, routing_of, samples_of
from samestep.app.calculators.batch_statistics.normalising import batch_normalising, whitening
from samestep.app.calculators.batch_statistics.query import Query
from samestep.app.calculators.batch_statistics.results import AnyScheme, Result, Scope, View
from samestep.app.calculators.batch_statistics.value_schemes import batch_norm, value_scopes, whiten
from samestep.app.contract.models import chosen

__all__ = ["Inputs", "Query", "Result", "View", "compute", "present"]

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
    result, scopes = _computed(inputs)
    selected = chosen(result.schemes, scheme or _USUAL[inputs.term])
    reference = next(iter(result.schemes))
    return View(
        **dict(result),
        selected=selected,
        current=result.schemes[selected],
        reference=reference,
        reference_scopes=scopes(reference),
        scopes=scopes(selected),
    )


def _computed(inputs: Inputs) -> tuple[Result, Callable[[str], list[Scope]]]:
    """The result, and what the figure draws of a scheme."""
    schemes: dict[str, AnyScheme]
    if inputs.term == "load_balance":
        routing = routing_of(inputs)
        schemes = dict(load_balance(routing))
        return _result(inputs, schemes, routing.shape), lambda _: []
    if inputs.term == "group_norm":
        samples, own = samples_of(inputs)
        eps = float(inputs.used_eps)
        found = {
            "whole": normalised(samples, inputs.groups, eps),
            "channels_split": normalised(samples, own * inputs.shards, eps),
        }
        schemes = {name: group_norm(one, found["whole"]) for name, one in found.items()}
        return _result(inputs, schemes, None, own), lambda name: channel_scopes(samples, found[name])
    values = values_of(inputs.values)
    if inputs.term == "whiten":
        statistics = whitening(values, unbiased=inputs.unbiased)
        schemes = dict(whiten(values, statistics, inputs))
    else:
        statistics = batch_normalising(values)
        schemes = dict(batch_norm(values, statistics, inputs))
    unbiased = inputs.term == "whiten" and inputs.unbiased
    result = _result(inputs, schemes, values.shape)
    return result, lambda name: value_scopes(values, statistics[name], unbiased)


def _result(
    inputs: Inputs, schemes: dict[str, AnyScheme], shape: tuple[int, int] | None, own: int | None = None
) -> Result:
    ranks, microsteps = shape or (None, None)
    return Result(term=inputs.term, replicas=ranks, microsteps=microsteps, groups_per_shard=own, schemes=schemes)
