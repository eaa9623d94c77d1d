"""What a mesh ledger answers, as the answer has it."""

from pydantic import ConfigDict, Field

from samestep.app.calculators.mesh_ledger.inputs import SchemeName
from samestep.app.calculators.mesh_ledger.mesh import ClassName, Kind
from samestep.app.calculators.mesh_ledger.sums import LabelPlace, NormName
from samestep.app.contract.models import Reason, Result as ResultBase, Table


class ParameterClass(ResultBase):
    """How the gradient of one class of parameters is made: the axes that are added over, how many contributions that
    are, what the sum is divided by, and the axes over which its squares are added for a norm."""

    sum_axes: list[str]
    ranks_summed: int
    divide_by: int
    square_axes: list[str]


class SchemeResult(ResultBase):
    """One way to reduce a class: `factor` is the multiple of the right gradient where all contributions are equal,
    `copies_differ` says that ranks which should hold the same gradient hold different ones."""

    model_config = ConfigDict(serialize_by_alias=True)

    class_: ClassName = Field(serialization_alias="class")
    defined: bool
    reason: Reason | None
    factor: float
    factor_exact: str
    ratio_to_reference: float
    matches_reference: bool
    copies_differ: bool


class LabelCount(ResultBase):
    """A sum of label counts, and what the gradient is multiplied by if it is divided by that; null (`zero_count`) where
    no label counts."""

    count: int
    count_exact: str
    gradient_factor: float | None
    gradient_factor_exact: str | None
    reason: Reason | None


Value = float | list[float]


class Result(ResultBase):
    """The mesh and its classes; `values`, `norms` and `labels` are null where their input is blank.

    A value is one number, or one a rank where ranks disagree; `norms_squared` is in the order of `norms`.
    """

    data_ranks: int
    expert_data_ranks: int
    world: int
    classes: dict[ClassName, ParameterClass]
    schemes: dict[SchemeName, SchemeResult]
    values: dict[SchemeName, Value] | None
    values_exact: dict[SchemeName, str | list[str]] | None
    norms: dict[NormName, float] | None
    norms_squared: list[float] | None
    norms_squared_exact: list[str] | None
    labels: dict[LabelPlace, LabelCount] | None

    def tables(self) -> list[Table]:
        """The classes, the schemes, and what was asked of values, norms and labels."""
        classes = [
            (name, " ".join(one.sum_axes), one.ranks_summed, one.divide_by, " ".join(one.square_axes))
            for name, one in self.classes.items()
        ]
        schemes = [(name, *(value for _, value in scheme)) for name, scheme in self.schemes.items()]
        fields = (field.removesuffix("_") for field in SchemeResult.model_fields)
        tables = [
            Table(header=("class", *ParameterClass.model_fields), rows=classes),
            Table(header=("scheme", *fields), rows=schemes),
        ]
        if self.values is not None:
            values = [
                (name, rank, one)
                for name, value in self.values.items()
                for rank, one in enumerate(value if isinstance(value, list) else [value])
            ]
            tables.append(Table(header=("scheme", "rank", "value"), rows=values))
        if self.norms is not None and self.norms_squared is not None:
            squares = zip(self.norms.items(), self.norms_squared, strict=True)
            tables.append(
                Table(header=("norm", "value", "squared"), rows=[(*norm, square) for norm, square in squares])
            )
        if self.labels is not None:
            labels = [(name, *(value for _, value in one)) for name, one in self.labels.items()]
            tables.append(Table(header=("counted", *LabelCount.model_fields), rows=labels))
        return tables


class Grid(ResultBase):
    """A corner of the mesh for one class: `kinds[row][column]`, data ranks by stages of tp ranks."""

    kinds: list[list[Kind]]


class View(Result):
    """What the panel shows: one scheme, and for every class which ranks are added, equal or strangers to rank 0."""

    selected: SchemeName
    current: SchemeResult
    grids: dict[ClassName, Grid]
    stages_shown: list[int]
    tp_shown: int
    whole_mesh_shown: bool
    axes: dict[str, int]
    divisor: int
