"""What a window's programs did, as the answer has it."""

from typing import Literal

from samestep.app.contract import models

Wrapper = Literal["ddp", "fsdp2", "hsdp"]
Outcome = Literal["steps", "waits", "raises"]


class EventResult(models.Result):
    """A forward or a backward of the program, microsteps counted from 0.

    `communicates` says whether gradients are reduced in it, `collectives` in how many calls. `grad` is what `.grad`
    holds on every rank afterwards (null: still None), `waiting` what FSDP2 holds beside it; with hybrid sharding, the
    mean of the rank's group.
    """

    kind: Literal["forward", "backward"]
    microsteps: list[int]
    sync: bool
    communicates: bool
    collectives: int
    grad: list[float | None]
    waiting: list[float]


class SchemeResult(models.Result):
    """One program. `final` is `.grad` when the optimizer steps, `left_behind` what goes over into the next window.

    `outcome` is `waits` where ranks wait for one that never comes, `raises` where the next forward does; nothing is
    stepped with then, and the numbers are null (`not_reached`). `.grad` is None where nothing was ever reduced under
    FSDP2 (`not_reduced`). `ratio_to_reference` is null too where the ranks hold different numbers or g* is 0.
    """

    defined: bool
    reason: models.Reason | None
    outcome: Outcome
    events: list[EventResult]
    final: list[float | None]
    final_exact: list[str | None]
    left_behind: list[float]
    replicas_agree: bool
    matches_reference: bool
    ratio_to_reference: float | None
    reductions: int
    collectives: int
    elements_reduced: int


class Result(models.Result):
    """All programs side by side. `buckets` are the elements of each collective, in order; DDP's first backward has a
    single bucket (`first_buckets`), unless it looks for unused parameters."""

    reference: float
    reference_exact: str
    buckets: list[int]
    first_buckets: list[int]
    bytes_per_reduction: int
    schemes: dict[str, SchemeResult]

    def tables(self) -> list[models.Table]:
        """One row a program, then one for every event of each."""
        names = ("outcome", "replicas_agree", "matches_reference", "reductions", "collectives", "elements_reduced")
        programs = [
            (name, _listed(scheme.final), *(getattr(scheme, one) for one in names))
            for name, scheme in self.schemes.items()
        ]
        happened = [
            (name, number, event.kind, _listed(event.microsteps), event.sync, event.collectives, _listed(event.grad))
            for name, scheme in self.schemes.items()
            for number, event in enumerate(scheme.events)
        ]
        header = ("scheme", "event", "kind", "microsteps", "sync", "collectives", "grad")
        return [
            models.Table(header=("scheme", "final", *names), rows=programs),
            models.Table(header=header, rows=happened),
        ]


class View(Result):
    """What the panel shows: one program, beside the reference."""

    selected: str
    current: SchemeResult
    wrapper: Wrapper
    groups: int | None
    ranks: int
    microsteps: int


def _listed(values: list[float | None] | list[int]) -> str:
    return " ".join("None" if value is None else repr(value) for value in values)
