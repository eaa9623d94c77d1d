"""What every calculator promises: bodies, a panel's state, answers and their tables."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, ConfigDict

from samestep.app.contract.errors import InputError
from samestep.app.contract.tables import TableForm

_LISTED_NAMES = 12

Reason = Literal[
    "empty_cell",
    "zero_count",
    "zero_reference",
    "non_finite",
    "not_reached",
    "not_reduced",
    "one_value",
    "zero_variance",
]


class Inputs(BaseModel):
    """Base of POST bodies: frozen, unknown names refused, finite unless a field says otherwise."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    in_place: ClassVar[Mapping[str, type["Inputs"]]] = {}
    """Fields whose own fields may stand at the top of the body in their place."""

    tables: ClassVar[tuple[TableForm, ...]] = ()
    """Tables that make fields which are no plain lists or matrices."""

    @classmethod
    def laid_out(cls, body: dict[str, Any]) -> dict[str, Any]:
        """The same body, its numbers in matrices where they can be: what a form shows and an address holds."""
        return body


class Query(Inputs):
    """Base of a panel's state: the flat fields of a GET address, with the panel's defaults.

    `logged` are groups of fields that one line of a training log fills: the names of `contract.log_lines` to fields.
    """

    logged: ClassVar[tuple[Mapping[str, str], ...]] = ()

    def inputs(self) -> Inputs:
        """The body that these fields stand for; InputError, naming a field of the panel, where they do not fit.

        A panel with the fields of the body inherits from both; its body is made of these very fields.
        """
        body = next(base for base in type(self).__mro__[1:] if issubclass(base, Inputs) and not issubclass(base, Query))
        return body(**{name: getattr(self, name) for name in body.model_fields})


class Result(BaseModel):
    """Base of answers: frozen, and unable to hold NaN or Infinity."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)

    def tables(self) -> list["Table"]:
        """The result as tables, for CSV."""
        raise NotImplementedError


_Scheme = TypeVar("_Scheme", bound=str)


def chosen(schemes: Iterable[_Scheme], scheme: str | None) -> _Scheme:
    """The scheme to show: the named one, or the first; InputError where there is none of this name."""
    names = list(schemes)
    if scheme is None and names:
        return names[0]
    for name in names:
        if name == scheme:
            return name
    if not names:
        en, zh = "are empty: there is none to show", "为空：没有可以显示的方案"
        raise InputError(en, zh, field="schemes", code="too_short")
    listed = ", ".join(names[:_LISTED_NAMES])
    raise InputError(f"must be one of {listed}", f"应为 {listed} 之一", field="scheme", code="literal_error")


def selection(schemes: Mapping[_Scheme, Any], scheme: str | None) -> dict[str, Any]:
    """What a view says of the scheme to show: its name as `selected`, its result as `current`."""
    selected = chosen(schemes, scheme)
    return {"selected": selected, "current": schemes[selected]}


def no_scheme(scheme: str | None) -> None:
    """For calculators without schemes: InputError where one is asked for."""
    if scheme is not None:
        en, zh = "is not a field of this calculator", "不是这个计算器的字段"
        raise InputError(en, zh, field="scheme", code="extra_forbidden")


class Table(BaseModel):
    """One table of a result: a header and its rows, cells as they are written to CSV."""

    header: tuple[str, ...]
    rows: Sequence[tuple[str | float | int | bool | None, ...]]
