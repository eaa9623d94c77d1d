"""An optimizer's state after every way of treating the window."""

from typing import Any, Literal

from samestep.app.calculators.empty_step.inputs import OptimizerName, SchemeName
from samestep.app.contract import models
from samestep.app.contract.numbers import NonFinite

Value = float | NonFinite


Change = Literal["nothing", "scheduler", "moments", "parameters", "nan"]


class State(models.Result):
    """The optimizer's state after one way of treating the window, and what has changed.

    `step` and the moments are null for SGD, `momentum_buffer` for AdamW and for SGD that has none (yet); lists with one
    entry an element are null above MAX_LISTED_CELLS of them. `change` names the most that has changed: `nothing`, only
    the `scheduler`, the `moments` (or the step), the `parameters`, or `nan` where a parameter is no longer finite.
    `same_as_skip` speaks of the optimizer (parameters, moments, step), `max_change` is the largest |w' - w|.
    """

    called: bool
    param: list[Value] | None
    exp_avg: list[Value] | None
    exp_avg_sq: list[Value] | None
    step: int | None
    momentum_buffer: list[Value] | None
    scheduler_steps: int
    change: Change
    same_as_skip: bool
    max_change: Value
    from_decay: list[Value] | None
    from_history: list[Value] | None
    from_gradient: list[Value] | None


class Result(models.Result):
    """All ways side by side. `defined` is false, `reason` `non_finite`, where the given gradient is not finite."""

    optimizer: OptimizerName
    defined: bool
    reason: models.Reason | None
    skip: State
    step_called: State
    schemes: dict[SchemeName, State]

    def tables(self) -> list[models.Table]:
        """One row an element of each way, then one a way."""
        places = ("param", "exp_avg", "exp_avg_sq", "momentum_buffer", "from_decay", "from_history", "from_gradient")
        elements: list[tuple[Any, ...]] = []
        for name, state in self.schemes.items():
            lists = [getattr(state, place) for place in places]
            count = max((len(values) for values in lists if values is not None), default=0)
            elements += [(name, i, *(None if values is None else values[i] for values in lists)) for i in range(count)]
        ways = [
            (name, s.called, s.step, s.scheduler_steps, s.change, s.same_as_skip, s.max_change)
            for name, s in self.schemes.items()
        ]
        return [
            models.Table(header=("scheme", "element", *places), rows=elements),
            models.Table(
                header=("scheme", "called", "step", "scheduler_steps", "change", "same_as_skip", "max_change"),
                rows=ways,
            ),
        ]


class View(Result):
    """What the panel shows: the state before the window, and the selected way."""

    selected: SchemeName
    current: State
    before: list[float] | None
