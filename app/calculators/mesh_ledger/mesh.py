"""A mesh of devices, the classes of parameters on it, and over which of its axes each class is reduced.

Words and symbols: the axes dp, fsdp, cp (data), tp, pp; a data rank is one place on the first three, D = dp·fsdp·cp of
them. ep cuts the data ranks again: `ep` neighbours hold different experts, and edp = D/ep data ranks hold the same one
(expert tensor parallelism is that of the rest). What the sum over ranks is divided by, R, depends on the local loss:

    local_mean       every data rank takes the mean over its own tokens           R = D
    cp_group_mean    the slices of a context group share the group's count        R = dp·fsdp
    global_count     every token is divided by the count of the whole batch       R = 1

Sources: Megatron-Core, `finalize_model_grads.py` and `distributed_data_parallel.py` (August 2026) for the sums and the
scaling of experts; torch 2.13 DTensor, whose gradient of a norm under sequence parallelism is a Partial(sum).
"""

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

ClassName = Literal["dense", "norm", "replicated", "expert", "tied"]
LossName = Literal["local_mean", "cp_group_mean", "global_count"]
Kind = Literal["summed", "copy", "other"]

CLASSES: tuple[ClassName, ...] = ("dense", "norm", "replicated", "expert", "tied")
_DATA = ("dp", "fsdp", "cp")
SQUARE_AXES: dict[ClassName, tuple[str, ...]] = {
    "dense": ("fsdp", "tp", "pp"),
    "norm": ("fsdp", "pp"),
    "replicated": ("fsdp", "pp"),
    "expert": ("fsdp", "ep", "tp", "pp"),
    "tied": ("fsdp", "tp"),
}


@dataclass(frozen=True)
class Mesh:
    """The sizes of the axes, whether norms see a slice of the sequence on each tp rank, and what the local loss is."""

    dp: int
    fsdp: int
    cp: int
    tp: int
    pp: int
    ep: int
    sequence_parallel: bool
    loss: LossName

    @property
    def data_ranks(self) -> int:
        """D."""
        return self.dp * self.fsdp * self.cp

    @property
    def expert_data_ranks(self) -> int:
        """edp: data ranks that hold the same experts."""
        return self.data_ranks // self.ep

    @property
    def world(self) -> int:
        return self.data_ranks * self.tp * self.pp

    @property
    def divisor(self) -> int:
        """R."""
        return {"local_mean": self.data_ranks, "cp_group_mean": self.dp * self.fsdp, "global_count": 1}[self.loss]

    @property
    def norm_ranks(self) -> int:
        """How many tp ranks hold a part of a norm's gradient: all under sequence parallelism, else they are copies."""
        return self.tp if self.sequence_parallel else 1

    def sum_axes(self, name: ClassName) -> tuple[str, ...]:
        """The axes over which the class's gradients are added."""
        if name == "expert":
            return ("edp",)
        if name == "tied":
            return (*_DATA, "first_and_last_stage")
        return (*_DATA, "tp") if name == "norm" and self.sequence_parallel else _DATA

    def ranks_summed(self, name: ClassName) -> int:
        """How many contributions make one gradient of the class."""
        if name == "expert":
            return self.expert_data_ranks
        factor = {"norm": self.norm_ranks, "tied": min(self.pp, 2)}.get(name, 1)
        return self.data_ranks * factor

    def kind(self, name: ClassName, data: int, stage: int, tp: int) -> Kind:
        """What a rank holds beside rank 0 of the class: a contribution that is added to it, the same gradient again, or
        another part of the model."""
        same_stage = stage in (0, self.pp - 1) if name == "tied" else stage == 0
        if not same_stage or (name == "expert" and data % self.ep):
            return "other"
        if tp == 0 or (name == "norm" and self.sequence_parallel):
            return "summed"
        return "copy" if name in ("norm", "replicated") else "other"


def factors(mesh: Mesh) -> dict[str, tuple[ClassName, Fraction, bool]]:
    """Every scheme's class, what multiple of the right gradient it is if all contributions are equal, and whether the
    ranks that should hold the same gradient hold different ones."""
    right = Fraction(mesh.divisor)
    split, stages = mesh.norm_ranks > 1, mesh.pp > 1
    half = Fraction(1, 2 if stages else 1)
    one, norm = Fraction(1), Fraction(1, mesh.norm_ranks)
    copies = Fraction(mesh.tp, mesh.norm_ranks)
    return {
        "dense_right": ("dense", one, False),
        "dense_divided_by_data_and_context": ("dense", right / mesh.data_ranks, False),
        "dense_divided_by_data": ("dense", right / (mesh.dp * mesh.fsdp), False),
        "dense_summed": ("dense", right, False),
        "dense_context_not_reduced": ("dense", Fraction(1, mesh.cp), mesh.cp > 1),
        "norm_right": ("norm", one, False),
        "norm_not_reduced_over_tp": ("norm", norm, split),
        "norm_averaged_over_tp": ("norm", norm, False),
        "norm_summed_over_tp": ("norm", copies, False),
        "replicated_right": ("replicated", one, False),
        "replicated_summed_over_tp": ("replicated", Fraction(mesh.tp), False),
        "expert_right": ("expert", one, False),
        "expert_divided_by_its_own_group": ("expert", right / mesh.expert_data_ranks, False),
        "tied_right": ("tied", one, False),
        "tied_not_summed": ("tied", half, stages),
        "tied_averaged": ("tied", half, False),
    }
