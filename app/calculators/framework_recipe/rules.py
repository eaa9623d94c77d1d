"""Who divides by what between a token's loss and the optimizer: the rules of training frameworks, as data.

Words and symbols: P ranks over which a gradient is averaged, K microsteps per update as configured, K_r those that this
window really has, n_rk valid tokens of rank r in microstep k, n_r = Σ_k n_rk, N = Σ n_rk. A rule is the list of its
divisions (and multiplications), and the weight of a token is their product: nothing is said twice. Each rule is bound
to what the conformance experiment measured in the release that is named, and where there is one to a public source.
"""

from dataclasses import dataclass
from typing import Literal

By = Literal["n_rk", "n_r", "N", "P", "K", "K_r"]
Who = Literal["loss", "model", "trainer", "accumulation", "engine", "reduction"]
When = Literal["forward", "backward", "all_reduce"]
Reduction = Literal["mean", "sum", "custom"]
FrameworkId = Literal["torch_ddp", "torch_fsdp2", "accelerate", "transformers", "trl", "lightning", "deepspeed"]
Tail = Literal["steps", "dropped", "waits"]
"""What becomes of a window with fewer microsteps than configured: it updates, is left out, or waits for more."""


@dataclass(frozen=True)
class Division:
    """Somebody divides (or, with `multiplies`, multiplies) by a count."""

    who: Who
    by: By
    when: When
    multiplies: bool = False


@dataclass(frozen=True)
class Measured:
    """A setting of the conformance experiment, and what its loss was there: its reduction, times `factor`."""

    setting: str
    reduction: Reduction = "mean"
    factor: str = "1"


@dataclass(frozen=True)
class Rule:
    """One framework with one setting, in one release. `yours`: the loss function is the reader's own, so that its
    reduction comes first; else the model or trainer reduces, whatever the reader writes."""

    framework: FrameworkId
    setting: str
    release: str
    yours: bool
    divisions: tuple[Division, ...]
    measured: tuple[Measured, ...]
    tail: Tail = "steps"
    source: str = ""


_AVERAGE = Division("reduction", "P", "all_reduce")
_PER_K = Division("accumulation", "K", "backward")
_TIMES_P = Division("trainer", "P", "backward", multiplies=True)
_BY_N = Division("model", "N", "forward")
_BY_OWN = Division("model", "n_r", "forward")
_DDP = "https://docs.pytorch.org/docs/2.13/generated/torch.nn.parallel.DistributedDataParallel.html"
_LOCAL, _GLOBAL = Measured("local_mean", "mean", "1/K"), Measured("scaled_sum", "sum", "P/N")

RULES: tuple[Rule, ...] = (
    Rule("torch_ddp", "default", "2.13.0", True, (_AVERAGE,), (_LOCAL, _GLOBAL), source=_DDP),
    Rule("torch_ddp", "sum_hook", "2.13.0", True, (), (Measured("sum_hook", "sum", "1/N"),), source=_DDP),
    Rule("torch_fsdp2", "default", "2.13.0", True, (_AVERAGE,), (_LOCAL, _GLOBAL)),
    Rule("torch_fsdp2", "divide_factor_1", "2.13.0", True, (), (Measured("divide_factor_1", "mean", "1/K"),)),
    Rule(
        "accelerate",
        "accumulate",
        "1.15.0",
        True,
        (_PER_K, _AVERAGE),
        (Measured("accumulate_mean"), Measured("recipe", "sum", "K*P/N")),
    ),
    Rule(
        "lightning",
        "trainer",
        "2.6.6",
        True,
        (_PER_K, _AVERAGE),
        (Measured("trainer_mean"), Measured("trainer_recipe", "sum", "K*P/N")),
        source="https://github.com/Lightning-AI/pytorch-lightning/issues/19987",
    ),
    Rule(
        "deepspeed",
        "engine",
        "0.19.8",
        True,
        (Division("engine", "K", "backward"), _AVERAGE),
        (Measured("zero1"),),
        tail="waits",
        source="https://github.com/deepspeedai/DeepSpeed/issues/7439",
    ),
    Rule("transformers", "default", "5.24.0", False, (_BY_N, _TIMES_P, _AVERAGE), (Measured("default"),)),
    Rule("transformers", "own_counts", "5.24.0", False, (_BY_OWN, _AVERAGE), (Measured("average_off"),)),
    Rule(
        "transformers",
        "no_kwargs",
        "5.24.0",
        False,
        (Division("model", "n_rk", "forward"), Division("trainer", "K_r", "backward"), _AVERAGE),
        (Measured("no_kwargs"),),
    ),
    Rule("transformers", "compute_loss_func", "5.24.0", True, (_TIMES_P, _AVERAGE), (Measured("mean_loss_func"),)),
    Rule("trl", "default", "1.16.0", False, (_BY_N, _TIMES_P, _AVERAGE), (Measured("default"),)),
    Rule("trl", "own_counts", "1.16.0", False, (_BY_OWN, _AVERAGE), (Measured("average_off"),)),
)


def settings_of(framework: str) -> list[str]:
    """The settings of a framework, in the order of the rules."""
    return list(dict.fromkeys(rule.setting for rule in RULES if rule.framework == framework))


def releases_of(framework: str, setting: str) -> list[str]:
    """The releases that a setting was measured in, the newest first."""
    return [rule.release for rule in RULES if (rule.framework, rule.setting) == (framework, setting)]
