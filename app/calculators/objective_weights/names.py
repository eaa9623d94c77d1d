"""What practitioners call the means: the settings of TRL and verl, and the releases in which they divide so.

TRL's `loss_type` and verl's `loss_agg_mode`, read in `grpo_trainer.py`, `core_algos.py` and `dp_actor.py` at the tags
named; the sources are listed in the chapter on reinforcement learning. A name stands at the mean that the setting takes
whatever the completions are. Names whose weights also depend on something else (a count of another window, a sum that
is no mean) are the business of `rl_weights`.
"""

from collections.abc import Mapping

from samestep.app.calculators.objective_weights.partition import Objective, Placement
from samestep.app.contract.models import Result


class Name(Result):
    """A setting as one writes it; it divides so `since` a release and `until` one, null where that is open."""

    framework: str
    setting: str
    since: str | None = None
    until: str | None = None

    def __str__(self) -> str:
        return f"{self.framework} {self.since or ''}-{self.until or ''} {self.setting}"


def _trl(setting: str, since: str | None = "0.17.0", until: str | None = None) -> Name:
    return Name(framework="TRL", setting=setting, since=since, until=until)


def _verl(mode: str, since: str | None = None, until: str | None = None) -> Name:
    return Name(framework="verl", setting=f'loss_agg_mode="{mode}"', since=since, until=until)


_LEGACY = "0.7.1"
"""The last release with `dp_actor.py`."""

NAMES: Mapping[tuple[Objective, Placement], tuple[Name, ...]] = {
    ("token_mean", "window"): (
        _trl('loss_type="dapo", steps_per_generation=K', "0.22.0"),
        _verl("token-mean", "0.7.0"),
    ),
    ("token_mean", "microbatch"): (
        _trl('loss_type="bnpo"'),
        _trl("GRPO", "0.16.0", "0.16.1"),
        Name(framework="verl", setting='loss_agg_mode="token-mean" (dp_actor.py)', until=_LEGACY),
    ),
    ("sequence_mean", "window"): (_verl("seq-mean-token-mean", "0.7.0"),),
    ("sequence_mean", "microbatch"): (
        _trl('loss_type="grpo"'),
        _trl("GRPO", None, "0.15.2"),
        Name(framework="verl", setting='loss_agg_mode="seq-mean-token-mean" (dp_actor.py)', until=_LEGACY),
    ),
    ("constant", "window"): (_verl("seq-mean-token-sum-norm", "0.7.1"),),
    ("constant", "microbatch"): (_trl('loss_type="dr_grpo"'),),
    ("sample_weighted", "replica"): (
        Name(framework="verl", setting='loss_agg_mode="token-mean", use_dynamic_bsz (dp_actor.py)', until=_LEGACY),
    ),
}
"""By objective and placement; a mean that is not here is nobody's setting, as far as these two go."""
