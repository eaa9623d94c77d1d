"""Who divides by what between a token's loss and the optimizer: the rules of training frameworks, as data.

Words and symbols: P ranks over which a gradient is averaged, K microsteps per update as configured, K_r those that this
window really has, n_rk valid tokens of rank r in microstep k, n_r = Σ_k n_rk, n_k = Σ_r n_rk, N = Σ n_rk. A rule is the
list of its divisions (and multiplications), and the weight of a token is their product: nothing is said twice. Each
rule is bound to what the conformance experiment measured in the release that is named, and where there is one to a
public source.
"""

from dataclasses import dataclass
from typing import Literal

By = Literal["n_rk", "n_r", "n_k", "N", "P", "K", "K_r", "P/C", "denominator", "loss_factor"]
"""A count; behind them P over the C ranks of a context, and two fields of the inputs, which no rule has."""
Who = Literal["loss", "model", "trainer", "accumulation", "engine", "reduction"]
When = Literal["forward", "backward", "all_reduce"]
Reduction = Literal["mean", "sum", "custom"]
FrameworkId = Literal[
    "torch_ddp",
    "torch_fsdp2",
    "torch_pipelining",
    "torch_tensor_parallel",
    "accelerate",
    "transformers",
    "lightning",
    "deepspeed",
    "megatron_core",
    "paddle",
    "trl",
    "trl_preference",
    "axolotl",
    "llama_factory",
    "ms_swift",
    "trl_grpo",
    "verl",
    "openrlhf",
    "jax",
    "optax",
    "tunix",
    "keras_jax",
    "keras_tensorflow",
]
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
_PER_MICROBATCH = (Division("model", "n_rk", "forward"), Division("trainer", "K_r", "backward"), _AVERAGE)
_COUNTED = (_BY_N, _TIMES_P, _AVERAGE)
_BY_ENGINE = Division("engine", "K", "backward")
_WHOLE = Division("loss", "n_k", "forward")
"""A mean over an array that all devices share: the labels of all ranks in one micro-step."""
_DDP = "https://docs.pytorch.org/docs/2.13/generated/torch.nn.parallel.DistributedDataParallel.html"
_LOCAL, _GLOBAL = Measured("local_mean", "mean", "1/K"), Measured("scaled_sum", "sum", "P/N")
_AXOLOTL = "https://github.com/axolotl-ai-cloud/axolotl/pull/3982"
_SHARD_MAP = "https://github.com/jax-ml/jax/issues/3970"

RULES: tuple[Rule, ...] = (
    Rule("torch_ddp", "default", "2.13.0", True, (_AVERAGE,), (_LOCAL, _GLOBAL), source=_DDP),
    Rule("torch_ddp", "sum_hook", "2.13.0", True, (), (Measured("sum_hook", "sum", "1/N"),), source=_DDP),
    Rule("torch_fsdp2", "default", "2.13.0", True, (_AVERAGE,), (_LOCAL, _GLOBAL)),
    Rule("torch_fsdp2", "divide_factor_1", "2.13.0", True, (), (Measured("divide_factor_1", "mean", "1/K"),)),
    Rule(
        "torch_pipelining",
        "default",
        "2.13.0",
        True,
        (_BY_ENGINE,),
        (Measured("gpipe_mean"), Measured("gpipe_sum_over_total", "sum", "1/N"), Measured("1f1b_mean")),
    ),
    Rule(
        "torch_pipelining",
        "unscaled",
        "2.13.0",
        True,
        (),
        (Measured("gpipe_mean_unscaled"), Measured("gpipe_recipe", "sum", "1/N")),
    ),
    Rule(
        "torch_tensor_parallel",
        "whole_output",
        "2.13.0",
        False,
        (Division("loss", "N", "forward"),),
        (Measured("sequence_parallel"),),
    ),
    Rule("torch_tensor_parallel", "own_part", "2.13.0", True, (), (Measured("local_mean"),)),
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
        (_BY_ENGINE, _AVERAGE),
        (Measured("zero1"),),
        tail="waits",
        source="https://github.com/deepspeedai/DeepSpeed/issues/7439",
    ),
    Rule(
        "megatron_core",
        "three_values",
        "0.19.2",
        False,
        (Division("engine", "n_rk", "backward"), _BY_ENGINE, _AVERAGE),
        (Measured("sum_and_count"),),
        source="https://github.com/NVIDIA/Megatron-LM/issues/936",
    ),
    Rule(
        "megatron_core",
        "two_values",
        "0.19.2",
        True,
        (_BY_ENGINE, _AVERAGE),
        (Measured("already_global", "sum", "1/N"), Measured("recipe", "sum", "K*P/N")),
    ),
    Rule(
        "megatron_core",
        "per_token",
        "0.19.2",
        False,
        (Division("engine", "N", "all_reduce"),),
        (Measured("per_token"),),
    ),
    Rule(
        "megatron_core",
        "two_values_per_token",
        "0.19.2",
        True,
        (_BY_ENGINE,),
        (Measured("already_global_per_token", "sum", "1/N"),),
    ),
    Rule(
        "paddle",
        "default",
        "3.3.1",
        True,
        (_AVERAGE,),
        (Measured("mean_positive", "mean", "1/K"), Measured("recipe", "sum", "P/N")),
        source="https://github.com/PaddlePaddle/Paddle/issues/48663",
    ),
    Rule("transformers", "default", "5.24.0", False, _COUNTED, (Measured("default"),)),
    Rule("transformers", "own_counts", "5.24.0", False, (_BY_OWN, _AVERAGE), (Measured("average_off"),)),
    Rule(
        "transformers",
        "no_kwargs",
        "5.24.0",
        False,
        _PER_MICROBATCH,
        (Measured("no_kwargs"),),
    ),
    Rule("transformers", "compute_loss_func", "5.24.0", True, (_TIMES_P, _AVERAGE), (Measured("mean_loss_func"),)),
    Rule("trl", "default", "1.16.0", False, _COUNTED, (Measured("default"),)),
    Rule("trl", "own_counts", "1.16.0", False, (_BY_OWN, _AVERAGE), (Measured("average_off"),)),
    Rule(
        "trl_preference",
        "default",
        "1.16.0",
        False,
        _PER_MICROBATCH,
        (Measured("dpo"), Measured("kto"), Measured("reward")),
    ),
    Rule("axolotl", "default", "0.21.0", False, _COUNTED, (Measured("default"),), source=_AXOLOTL),
    Rule("axolotl", "default", "0.19.0", False, _PER_MICROBATCH, (Measured("default"),), source=_AXOLOTL),
    Rule("llama_factory", "text", "0.9.5", False, _COUNTED, (Measured("text"),)),
    Rule(
        "llama_factory",
        "processor",
        "0.9.5",
        False,
        _PER_MICROBATCH,
        (Measured("processor"),),
        source="https://github.com/hiyouga/LlamaFactory/issues/7743",
    ),
    Rule("ms_swift", "default", "4.6.0", False, _COUNTED, (Measured("default"),)),
    Rule("ms_swift", "own_counts", "4.6.0", False, (_BY_OWN, _AVERAGE), (Measured("average_off"),)),
    Rule(
        "trl_grpo",
        "dapo",
        "1.16.0",
        False,
        _COUNTED,
        (Measured("dapo"), Measured("vespo"), Measured("cispo_epsilon_high")),
        source="https://github.com/huggingface/trl/pull/6024",
    ),
    Rule("trl_grpo", "bnpo", "1.16.0", False, _PER_MICROBATCH, (Measured("bnpo"),)),
    Rule("verl", "token_mean", "0.9.1", False, _COUNTED, (Measured("token_mean"), Measured("sft"))),
    Rule(
        "verl",
        "without_totals",
        "0.9.1",
        False,
        (Division("model", "n_rk", "forward"), Division("trainer", "K", "backward"), _AVERAGE),
        (Measured("agg_loss_alone"),),
        source="https://github.com/verl-project/verl/issues/5625",
    ),
    Rule(
        "openrlhf",
        "counted",
        "0.11.2",
        False,
        (_BY_N, _TIMES_P, Division("trainer", "K", "backward", multiplies=True), _BY_ENGINE, _AVERAGE),
        (Measured("sft"), Measured("policy_token_mean")),
        tail="dropped",
    ),
    Rule(
        "openrlhf",
        "without_count",
        "0.11.2",
        False,
        (Division("model", "n_rk", "forward"), _BY_ENGINE, _AVERAGE),
        (Measured("sft_without_count"),),
        tail="dropped",
    ),
    Rule("jax", "jit", "0.12.0.1", False, (_WHOLE,), (Measured("jit"),)),
    Rule(
        "jax",
        "pmean",
        "0.12.0.1",
        True,
        (_AVERAGE,),
        (Measured("pmap_pmean"), Measured("shard_map_unchecked_pmean"), Measured("shard_map_grad_pmean")),
    ),
    Rule(
        "jax",
        "shard_map",
        "0.12.0.1",
        True,
        (),
        (Measured("shard_map_pmean"), Measured("shard_map_plain"), Measured("pmap_psum")),
        source=_SHARD_MAP,
    ),
    Rule(
        "jax",
        "shard_map_psum",
        "0.12.0.1",
        True,
        (Division("reduction", "P", "all_reduce", multiplies=True),),
        (Measured("shard_map_psum"),),
        source=_SHARD_MAP,
    ),
    Rule("optax", "multi_steps", "0.2.8", False, (_WHOLE, _PER_K), (Measured("multi_steps"),), tail="waits"),
    Rule("optax", "multi_steps_pmean", "0.2.8", True, (_AVERAGE, _PER_K), (Measured("multi_steps_pmean"),), "waits"),
    Rule("optax", "multi_steps_sum", "0.2.8", True, (), (Measured("multi_steps_recipe", "sum", "1/N"),), tail="waits"),
    Rule("tunix", "default", "0.1.7", False, (_WHOLE, _PER_K), (Measured("default"),), tail="dropped"),
    Rule(
        "keras_jax",
        "default",
        "3.15.1",
        False,
        (_WHOLE, _PER_K),
        (Measured("mask"), Measured("ignore_class"), Measured("sample_weight_mean")),
        tail="waits",
    ),
    Rule(
        "keras_tensorflow",
        "fit",
        "3.15.1",
        False,
        (Division("model", "n_rk", "forward"), _AVERAGE),
        (Measured("mask"), Measured("ignore_class"), Measured("sample_weight_mean")),
    ),
    Rule(
        "keras_tensorflow",
        "loop",
        "3.15.1",
        True,
        (),
        (Measured("loop_mean"), Measured("loop_recipe", "sum", "1/N")),
    ),
)


def settings_of(framework: str) -> list[str]:
    """The settings of a framework, in the order of the rules."""
    return list(dict.fromkeys(rule.setting for rule in RULES if rule.framework == framework))


def releases_of(framework: str, setting: str) -> list[str]:
    """The releases that a setting was measured in, the newest first."""
    return [rule.release for rule in RULES if (rule.framework, rule.setting) == (framework, setting)]
