"""The frameworks, and which releases of them: what is pinned is measured, and some older releases beside it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Release:
    """An older release that is installed beside the pinned one: `pins[0]` is the framework, the rest goes with it.

    `hidden`: installed packages that it must not see, because they no longer fit to it. `family`: where it does not fit
    beside the pinned one at all, the environment that holds it instead.
    """

    pins: tuple[str, ...]
    hidden: tuple[str, ...] = ()
    family: str = ""

    @property
    def version(self) -> str:
        return self.pins[0].partition("==")[2]


@dataclass(frozen=True)
class Framework:
    """`packages`: the distributions that have to be installed; the first one's version is the framework's.

    `seconds`: how long a single measurement may take, and `start` the imports before the first one. `family`: the
    environment that has it (see `families`), "" where it is the one that everything else runs in. `processes`: 1 where
    the framework keeps its devices in one process. `torch`: whether its processes need torch. `variables`: of the
    environment, for what a framework reads as soon as it is imported.
    """

    id: str
    name: str
    packages: tuple[str, ...]
    releases: tuple[Release, ...] = ()
    seconds: float = 30.0
    start: float = 120.0
    adapter: str = ""
    family: str = ""
    processes: int = 2
    torch: bool = True
    variables: tuple[tuple[str, str], ...] = ()

    @property
    def module(self) -> str:
        """The adapter, `frameworks/ID.py` unless another one is named."""
        return self.adapter or f"{__name__}.{self.id}"


_JAX = (("JAX_PLATFORMS", "cpu"), ("XLA_FLAGS", "--xla_force_host_platform_device_count=2"))
"""Two virtual devices."""

_QUIET = (("TRL_EXPERIMENTAL_SILENCE", "1"),)

FRAMEWORKS: dict[str, Framework] = {
    framework.id: framework
    for framework in (
        Framework("torch_ddp", "torch DDP", ("torch",)),
        Framework("torch_fsdp2", "torch FSDP2", ("torch",)),
        Framework("torch_pipelining", "torch pipelining", ("torch",)),
        Framework("torch_tensor_parallel", "torch tensor parallel", ("torch",)),
        Framework("deepspeed", "DeepSpeed", ("deepspeed",), (Release(("deepspeed==0.18.9",)),), start=600.0),
        Framework(
            "transformers",
            "transformers Trainer",
            ("transformers", "accelerate"),
            (
                Release(("transformers==4.57.1", "accelerate==1.10.1"), hidden=("datasets",)),
                Release(("transformers==4.53.3", "accelerate==1.8.1"), hidden=("datasets",)),
                Release(("transformers==4.50.3", "accelerate==1.5.2"), hidden=("datasets",)),
            ),
        ),
        Framework("accelerate", "accelerate", ("accelerate",)),
        Framework("trl", "TRL SFTTrainer", ("trl", "transformers", "accelerate")),
        Framework(
            "trl_grpo",
            "TRL GRPOTrainer",
            ("trl", "transformers", "accelerate", "datasets"),
            (Release(("trl==1.5.0", "requests==2.32.5")),),
            seconds=60.0,
            variables=_QUIET,
        ),
        Framework(
            "trl_preference",
            "TRL DPO, KTO, Reward",
            ("trl", "transformers", "accelerate", "datasets"),
            seconds=60.0,
            variables=_QUIET,
        ),
        Framework("lightning", "Lightning Trainer", ("lightning",)),
        Framework(
            "sentence_transformers",
            "sentence-transformers",
            ("sentence-transformers", "transformers", "accelerate", "datasets"),
        ),
        Framework(
            "mega_batch_margin",
            "sentence-transformers MegaBatchMarginLoss",
            ("sentence-transformers", "transformers"),
            (Release(("sentence-transformers==5.3.0",)),),
        ),
        Framework("pytorch_metric_learning", "pytorch-metric-learning", ("pytorch-metric-learning",)),
        Framework("open_clip", "open_clip", ("open-clip-torch",)),
        Framework(
            "axolotl",
            "axolotl",
            ("axolotl", "transformers", "accelerate"),
            (Release(("axolotl==0.19.0",), family="axolotl_0_19"),),
            seconds=60.0,
            start=300.0,
            family="axolotl",
        ),
        Framework(
            "llama_factory",
            "LLaMA-Factory",
            ("llamafactory", "transformers", "accelerate"),
            seconds=120.0,
            start=300.0,
            family="llama_factory",
            variables=(("DISABLE_VERSION_CHECK", "1"),),
        ),
        Framework(
            "ms_swift",
            "ms-swift",
            ("ms-swift", "transformers", "accelerate"),
            seconds=120.0,
            start=300.0,
            family="ms_swift",
            variables=(("USE_HF", "1"), ("MODELSCOPE_OFFLINE", "1"), ("SWIFT_PATCH_CONV3D", "0")),
        ),
        Framework("verl", "verl", ("verl", "tensordict", "transformers"), seconds=60.0, start=300.0, family="verl"),
        Framework("openrlhf", "OpenRLHF", ("openrlhf", "deepspeed"), start=600.0, family="openrlhf"),
        Framework("megatron_core", "Megatron-Core", ("megatron-core",), family="megatron_core"),
        Framework(
            "megatron_core_schedule",
            "Megatron-Core, the schedule alone",
            ("megatron-core",),
            family="megatron_core",
            processes=1,
        ),
        Framework("paddle", "PaddlePaddle", ("paddlepaddle",), family="paddle", torch=False),
        Framework("jax", "JAX", ("jax",), family="jax", processes=1, torch=False, variables=_JAX),
        Framework(
            "jax_processes",
            "JAX, two processes",
            ("jax",),
            family="jax",
            torch=False,
            variables=(("JAX_PLATFORMS", "cpu"),),
        ),
        Framework("optax", "optax", ("optax", "jax"), family="jax", processes=1, torch=False, variables=_JAX),
        Framework(
            "tunix",
            "Tunix",
            ("google-tunix", "jax"),
            seconds=60.0,
            family="tunix",
            processes=1,
            torch=False,
            variables=(*_JAX, ("TF_CPP_MIN_LOG_LEVEL", "3")),
        ),
        Framework(
            "keras_jax",
            "Keras on JAX",
            ("keras", "jax"),
            family="jax",
            processes=1,
            torch=False,
            variables=(("KERAS_BACKEND", "jax"), *_JAX),
        ),
        Framework(
            "keras_tensorflow",
            "Keras on TensorFlow",
            ("keras", "tensorflow"),
            seconds=120.0,
            family="tensorflow",
            processes=1,
            torch=False,
            variables=(("KERAS_BACKEND", "tensorflow"), ("TF_CPP_MIN_LOG_LEVEL", "3")),
        ),
    )
}
TIER_0 = ("torch_ddp", "torch_fsdp2", "torch_pipelining", "torch_tensor_parallel")
"""What needs nothing but torch, and is measured always."""
