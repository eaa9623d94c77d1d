"""The frameworks, and which releases of them: what is pinned is measured, and some older releases beside it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Release:
    """An older release that is installed beside the pinned one: `pins[0]` is the framework, the rest goes with it.

    `hidden`: installed packages that it must not see, because they no longer fit to it.
    """

    pins: tuple[str, ...]
    hidden: tuple[str, ...] = ()

    @property
    def version(self) -> str:
        return self.pins[0].partition("==")[2]


@dataclass(frozen=True)
class Framework:
    """`packages`: the distributions that have to be installed; the first one's version is the framework's.

    `seconds`: how long a single measurement may take, and `start` the imports before the first one.
    """

    id: str
    name: str
    packages: tuple[str, ...]
    releases: tuple[Release, ...] = ()
    seconds: float = 30.0
    start: float = 120.0
    adapter: str = ""

    @property
    def module(self) -> str:
        """The adapter, `frameworks/ID.py` unless another one is named."""
        return self.adapter or f"{__name__}.{self.id}"


FRAMEWORKS: dict[str, Framework] = {
    framework.id: framework
    for framework in (
        Framework("torch_ddp", "torch DDP", ("torch",)),
        Framework("torch_fsdp2", "torch FSDP2", ("torch",)),
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
        Framework("lightning", "Lightning Trainer", ("lightning",)),
        Framework(
            "sentence_transformers",
            "sentence-transformers",
            ("sentence-transformers", "transformers", "accelerate", "datasets"),
        ),
        Framework("pytorch_metric_learning", "pytorch-metric-learning", ("pytorch-metric-learning",)),
        Framework("open_clip", "open_clip", ("open-clip-torch",)),
    )
}
TIER_0 = ("torch_ddp", "torch_fsdp2")
"""What needs nothing but torch, and is measured always."""
