"""What comes of given contributions, squared norms and label counts on a mesh, rightly and wrongly; exact."""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Literal

from samestep.app.calculators.mesh_ledger.mesh import ClassName, Mesh
from samestep.app.mathematics.window import exact_sum

NormName = Literal[
    "right",
    "copies_counted_tp_times",
    "tp_shards_not_summed",
    "experts_left_out",
    "own_experts_only",
    "tied_counted_twice",
    "one_stage_only",
]
LabelPlace = Literal["right", "on_every_tp_rank", "before_the_context_split", "on_every_stage", "on_every_rank"]
Numbers = Sequence[Fraction]


def dense_values(given: Numbers, mesh: Mesh) -> dict[str, Fraction | list[Fraction]]:
    """Contributions in the order dp, fsdp, cp; what is not reduced over the context is one value a cp rank."""
    total, slices = exact_sum(given), [exact_sum(given[c :: mesh.cp]) for c in range(mesh.cp)]
    return {
        "dense_right": total / mesh.divisor,
        "dense_divided_by_data_and_context": total / mesh.data_ranks,
        "dense_divided_by_data": total / (mesh.dp * mesh.fsdp),
        "dense_summed": total,
        "dense_context_not_reduced": [part / mesh.divisor for part in slices],
    }


def norm_values(given: Numbers, mesh: Mesh) -> dict[str, Fraction | list[Fraction]]:
    """Contributions in the order dp, fsdp, cp and, under sequence parallelism, tp."""
    parts = mesh.norm_ranks
    own = [exact_sum(given[t::parts]) / mesh.divisor for t in range(parts)]
    total = exact_sum(own)
    return {
        "norm_right": total,
        "norm_not_reduced_over_tp": own if parts > 1 else own * mesh.tp,
        "norm_averaged_over_tp": total / parts,
        "norm_summed_over_tp": total * mesh.tp / parts,
    }


def replicated_values(given: Numbers, mesh: Mesh) -> dict[str, Fraction | list[Fraction]]:
    """Contributions in the order dp, fsdp, cp."""
    right = exact_sum(given) / mesh.divisor
    return {"replicated_right": right, "replicated_summed_over_tp": right * mesh.tp}


def expert_values(given: Numbers, mesh: Mesh) -> dict[str, Fraction | list[Fraction]]:
    """Contributions of the tokens of every data rank, or already collected on the edp ranks by the all-to-all."""
    total = exact_sum(given)
    return {
        "expert_right": total / mesh.divisor,
        "expert_divided_by_its_own_group": total / mesh.expert_data_ranks,
    }


def squared_norms(squares: Mapping[ClassName, Fraction], mesh: Mesh) -> dict[NormName, Fraction]:
    """Squares of the total norm, from the squares of whole classes; the wrong ones for shards of equal square."""
    copied = squares["norm"] + squares["replicated"]
    cut = squares["dense"] + squares["expert"] + squares["tied"]
    right = copied + cut
    return {
        "right": right,
        "copies_counted_tp_times": right + (mesh.tp - 1) * copied,
        "tp_shards_not_summed": copied + cut / mesh.tp,
        "experts_left_out": right - squares["expert"],
        "own_experts_only": right - squares["expert"] + squares["expert"] / mesh.ep,
        "tied_counted_twice": right + (squares["tied"] if mesh.pp > 1 else 0),
        "one_stage_only": right / mesh.pp,
    }


def label_counts(labels: Sequence[int], mesh: Mesh) -> dict[LabelPlace, int]:
    """What a sum of label counts gives, by the ranks that report them."""
    total = sum(labels)
    return {
        "right": total,
        "on_every_tp_rank": total * mesh.tp,
        "before_the_context_split": total * mesh.cp,
        "on_every_stage": total * mesh.pp,
        "on_every_rank": total * mesh.tp * mesh.pp,
    }
