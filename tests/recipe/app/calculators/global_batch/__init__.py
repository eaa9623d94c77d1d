"""How many samples an update sees: microbatch × accumulation steps × replicas."""

from typing import Annotated

from samestep.app.contract.fields import whole_number
from samestep.app.contract.models import Inputs as InputsBase, Query as QueryBase, Result as ResultBase, Table

Count = Annotated[int, whole_number(1, 4096)]


class Inputs(InputsBase):
    microbatch: Count = 8
    accumulation: Count = 4
    replicas: Count = 2


class Query(Inputs, QueryBase):
    """The panel has the fields of the body."""


class Result(ResultBase):
    samples: int

    def tables(self) -> list[Table]:
        return [Table(header=("samples",), rows=[(self.samples,)])]


def compute(inputs: Inputs) -> Result:
    return Result(samples=inputs.microbatch * inputs.accumulation * inputs.replicas)
