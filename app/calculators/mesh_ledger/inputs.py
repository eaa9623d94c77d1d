"""What a mesh ledger is asked: a body, or the fields of the panel."""

from collections.abc import Sequence
from fractions import Fraction
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from samestep.app.calculators.mesh_ledger.mesh import CLASSES, LossName, Mesh
from samestep.app.calculators.mesh_ledger.tables import TABLES
from samestep.app.contract.errors import InputError
from samestep.app.contract.fields import JSON, Flag, NonNegative, Real, numbers, whole_number, whole_numbers
from samestep.app.contract.limits import MAX_RANKS
from samestep.app.contract.models import Inputs as InputsBase, Query as QueryBase
from samestep.app.contract.numbers import as_json, not_negative

MAX_COUNT = 10**15
_AXES = ("dp", "fsdp", "cp", "tp", "pp")

SchemeName = Literal[
    "dense_right",
    "dense_divided_by_data_and_context",
    "dense_divided_by_data",
    "dense_summed",
    "dense_context_not_reduced",
    "norm_right",
    "norm_not_reduced_over_tp",
    "norm_averaged_over_tp",
    "norm_summed_over_tp",
    "replicated_right",
    "replicated_summed_over_tp",
    "expert_right",
    "expert_divided_by_its_own_group",
    "tied_right",
    "tied_not_summed",
    "tied_averaged",
]

Size = Annotated[int, whole_number(1, MAX_RANKS)]
Labels = Annotated[tuple[int, ...] | None, whole_numbers(0, MAX_COUNT).optional()]
Listed = Annotated[list[Real], Field(min_length=1, max_length=MAX_RANKS)]


class Contributions(InputsBase):
    """One element's gradient on every rank that has a part of it, as the loss leaves it; in the order dp, fsdp, cp, and
    tp last for a norm under sequence parallelism. Those of an expert may be given by data rank (whose tokens they come
    from) or by the edp ranks that hold it."""

    dense: Listed | None = None
    norm: Listed | None = None
    replicated: Listed | None = None
    expert: Listed | None = None


class Squares(InputsBase):
    """The squared norm of each class, every element of the model once; what is left out is 0."""

    dense: NonNegative = Fraction(0)
    norm: NonNegative = Fraction(0)
    replicated: NonNegative = Fraction(0)
    expert: NonNegative = Fraction(0)
    tied: NonNegative = Fraction(0)


def _needs(field: tuple[str, ...], given: Sequence[object] | None, lengths: Sequence[int]) -> None:
    """InputError where a list has another length than its ranks."""
    if given is None or len(given) in lengths:
        return
    wanted_en = " or ".join(f"{length:,}" for length in dict.fromkeys(lengths))
    wanted_zh = " 或 ".join(f"{length:,}" for length in dict.fromkeys(lengths))
    en = f"has {len(given):,} entries; this mesh needs {wanted_en}"
    raise InputError(en, f"有 {len(given):,} 项；这个网格要 {wanted_zh} 项", field=field, code="shape_mismatch")


class _OnMesh(InputsBase):
    """The axes of the mesh; body and panel differ in their defaults."""

    dp: Size = 1
    fsdp: Size = 1
    cp: Size = 1
    tp: Size = 1
    pp: Size = 1
    ep: Size = 1
    sequence_parallel: Flag = True
    loss: LossName = "local_mean"

    @property
    def mesh(self) -> Mesh:
        """The same as a value."""
        return Mesh(self.dp, self.fsdp, self.cp, self.tp, self.pp, self.ep, self.sequence_parallel, self.loss)

    @model_validator(mode="after")
    def _is_a_mesh(self) -> "_OnMesh":
        mesh = self.mesh
        if mesh.world > MAX_RANKS:
            largest = max(_AXES, key=lambda axis: getattr(self, axis))
            en = f"makes a mesh of {mesh.world:,} ranks; at most {MAX_RANKS:,} are taken"
            zh = f"使网格有 {mesh.world:,} 个 rank；至多 {MAX_RANKS:,} 个"
            raise InputError(en, zh, field=largest, code="too_long")
        if mesh.data_ranks % self.ep:
            en = f"must divide the {mesh.data_ranks:,} data ranks (dp · fsdp · cp)"
            zh = f"应整除数据 rank 的个数 {mesh.data_ranks:,}（dp · fsdp · cp）"
            raise InputError(en, zh, field="ep", code="multiple_of")
        return self


class Inputs(_OnMesh):
    """A mesh, and what is known of the gradients, norms and labels on it; each of the last three may be left out."""

    dp: Size = Field(default=1, examples=[2])
    tp: Size = Field(default=1, examples=[4])
    contributions: Annotated[Contributions, JSON] | None = Field(
        default=None, examples=[{"norm": ["0.1", "0.2", "0.3", "0.4", "0.1", "0.2", "0.3", "0.4"]}]
    )
    squares: Annotated[Squares, JSON] | None = Field(default=None, examples=[{"dense": 16, "norm": 9}])
    labels: Labels = Field(default=None, examples=[[3, 5]])

    tables: ClassVar = TABLES

    @model_validator(mode="after")
    def _fits(self) -> "Inputs":
        mesh = self.mesh
        if self.contributions is not None:
            ranks, given = mesh.data_ranks, self.contributions
            _needs(("contributions", "dense"), given.dense, [ranks])
            _needs(("contributions", "norm"), given.norm, [ranks * mesh.norm_ranks])
            _needs(("contributions", "replicated"), given.replicated, [ranks])
            _needs(("contributions", "expert"), given.expert, [ranks, mesh.expert_data_ranks])
        _needs(("labels",), self.labels, [mesh.data_ranks])
        return self


class Query(_OnMesh, QueryBase):
    """The panel: a norm's gradients by rank, the squares of the classes in their order, labels by data rank."""

    dp: Size = 2
    tp: Size = 4
    norm_gradients: Annotated[tuple[Fraction, ...] | None, numbers().optional()] = None
    squares: Annotated[tuple[Fraction, ...] | None, numbers(not_negative, minimum=0).optional()] = None
    labels: Labels = None
    scheme: SchemeName = "norm_averaged_over_tp"

    @model_validator(mode="after")
    def _fits(self) -> "Query":
        mesh = self.mesh
        _needs(("norm_gradients",), self.norm_gradients, [mesh.data_ranks * mesh.norm_ranks])
        _needs(("squares",), self.squares, range(1, len(CLASSES) + 1))
        _needs(("labels",), self.labels, [mesh.data_ranks])
        return self

    def inputs(self) -> Inputs:
        """The body that these fields stand for."""
        body: dict[str, Any] = {name: getattr(self, name) for name in _OnMesh.model_fields}
        body["labels"] = self.labels
        if self.norm_gradients is not None:
            body["contributions"] = {"norm": list(map(as_json, self.norm_gradients))}
        if self.squares is not None:
            body["squares"] = {name: as_json(value) for name, value in zip(CLASSES, self.squares, strict=False)}
        return Inputs.model_validate(body)
