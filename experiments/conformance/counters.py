"""How often a counter moves for each update: schedulers and moments may count something else than updates."""

from collections.abc import Callable, Mapping

from samestep.experiments.conformance.classifier import Finding, said
from samestep.experiments.conformance.rules import PER_UPDATE
from samestep.experiments.conformance.scenarios import Scenario

_TIMES: Mapping[str, Callable[[int, int], int]] = {
    "1": lambda processes, accumulation: 1,
    "P": lambda processes, accumulation: processes,
    "K": lambda processes, accumulation: accumulation,
    "P*K": lambda processes, accumulation: processes * accumulation,
}


def counted(updates: int, count: int, scenario: Scenario) -> Finding:
    """`per_update` with every factor that gives this count after so many updates; `other` where none does.

    With K = 1 the factors 1 and K are one number, so another scenario has to tell them apart.
    """
    processes, accumulation = len(scenario.counts), scenario.accumulation
    fitting = {name for name, times in _TIMES.items() if count == updates * times(processes, accumulation)}
    named = frozenset(PER_UPDATE if name == "1" else f"{PER_UPDATE}*{name}" for name in fitting)
    return Finding(said(named, scenario) or "other", named)
