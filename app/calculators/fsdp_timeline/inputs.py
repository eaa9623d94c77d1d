"""What a sharded model is described by: its groups of parameters, the ranks, the policy and the dtypes."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from samestep.app.contract import models
from samestep.app.contract.errors import InputError
from samestep.app.contract.fields import OrBlank, whole_number, whole_numbers
from samestep.app.contract.forms import Form
from samestep.app.contract.limits import MAX_RANKS
from samestep.app.contract.numbers import whole
from samestep.app.mathematics.element_size import Dtype

OptimizerName = Literal["adamw", "sgd_momentum", "sgd"]


Prefetch = Literal["off", "backward", "both"]


PolicyName = Literal["reshard", "keep", "group"]


MAX_LAYERS = 256


MAX_PARAMETERS = 10**13


STATES: dict[OptimizerName, int] = {"adamw": 2, "sgd_momentum": 1, "sgd": 0}


MaybeNone = Annotated[int, whole_number(0, MAX_PARAMETERS)]


Layers = Annotated[int, whole_number(1, MAX_LAYERS)]


Ranks = Annotated[int, whole_number(2, MAX_RANKS)]


LayerSizes = Annotated[tuple[int, ...], whole_numbers(1, MAX_PARAMETERS)]


def _policy(value: object) -> bool | int:
    """`true`, `false`, or a number of ranks."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().lower() in ("true", "false"):
        return value.strip().lower() == "true"
    try:
        return whole(value)
    except InputError as error:
        en, zh = "must be true, false or a number of ranks", "应为 true、false 或一个 rank 数"
        raise InputError(en, zh, code=error.code) from None


_POLICY_SCHEMA = {"anyOf": [{"type": "boolean"}, {"enum": ["true", "false"]}, {"type": "integer", "minimum": 2}]}


Policy = Annotated[
    bool | int,
    Form("number", _policy, _POLICY_SCHEMA, lambda value: str(value).lower() if isinstance(value, bool) else value),
]


class Inputs(models.Inputs):
    """A model cut into groups, and how it is sharded.

    The defaults are a decoder of 32 layers of width 4,096 (feed-forward 11,008, vocabulary 32,000, untied embedding and
    head in the root, no biases): 6,738,415,616 parameters, on 8 ranks.

    `parameters` is one number for all `layers`, or a list with one for each. `reduce_dtype` and `param_dtype` are
    MixedPrecisionPolicy's, `sharded_dtype` is the dtype of the parameters that the optimizer updates.
    """

    layers: Layers = 32
    parameters: LayerSizes = Field(default=(202_383_360,), examples=[202_383_360, [1000, 2000]])
    root_parameters: MaybeNone = 262_148_096
    ranks: Ranks = 8
    reshard_after_forward: Policy = True
    prefetch: Prefetch = "backward"
    sharded_dtype: Dtype = "float32"
    param_dtype: Dtype = "bfloat16"
    reduce_dtype: Dtype = "float32"
    optimizer: OptimizerName = "adamw"
    optimizer_dtype: Dtype = "float32"

    @model_validator(mode="after")
    def _fits(self) -> "Inputs":
        if len(self.parameters) not in (1, self.layers):
            en = f"has {len(self.parameters)} values: give one, or one for each of the {self.layers} layers"
            zh = f"有 {len(self.parameters)} 个值：应为一个，或 {self.layers} 层各一个"
            raise InputError(en, zh, field="parameters", code="shape_mismatch")
        k = self.reshard_after_forward
        if not isinstance(k, bool) and (not 1 < k < self.ranks or self.ranks % k):
            en = f"is {k}: a number of ranks must divide {self.ranks}, and be neither 1 nor {self.ranks}"
            zh = f"为 {k}：rank 数应整除 {self.ranks}，且不为 1 或 {self.ranks}"
            raise InputError(en, zh, field="reshard_after_forward", code="not_divisible")
        return self


class Query(Inputs, models.Query):
    """The panel has the fields of the body, `reshard_after_forward` as a text.

    `model` is a whole model's size, in place of `parameters` and `root_parameters`: cut into equal layers, what does
    not divide in the root.
    """

    reshard_after_forward: Policy = Field(default="true", validate_default=True)
    model: Annotated[Annotated[int, whole_number(1, MAX_PARAMETERS)] | None, OrBlank] = None

    @model_validator(mode="after")
    def _has_layers(self) -> "Query":
        if self.model is not None and self.model < self.layers:
            en, zh = f"is less than the {self.layers} layers", f"比 {self.layers} 层还少"
            raise InputError(en, zh, field="model", code="greater_than_equal")
        return self

    def inputs(self) -> Inputs:
        body = {name: getattr(self, name) for name in Inputs.model_fields}
        if self.model is not None:
            each, rest = divmod(self.model, self.layers)
            body |= {"parameters": (each,), "root_parameters": rest}
        return Inputs(**body)
