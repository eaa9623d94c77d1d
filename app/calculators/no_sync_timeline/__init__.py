"""Which backward of an accumulation window communicates, and what is in `.grad` after each.

Words and symbols: P ranks, K microsteps, g_rk the gradient that microstep k has on rank r (its loss already divided as
it should be). What the window means is the mean over the ranks of the ranks' sums,

    g* = (1/P) Σ_r Σ_k g_rk

A program says in which order forwards and backwards run, and in which of them gradient synchronisation is on (see
`programs`); DDP looks at the forward, FSDP2 at the backward (see `wrappers`; measured on torch 2.13 by the experiment
of the same name). A parameter without a gradient is another matter: with `unused` on one rank, DDP's other ranks wait
for a bucket that never gets full; everywhere, nothing is reduced and the next forward raises; with
`find_unused_parameters` both work, at one more all-reduce a reduction. FSDP2's answer to it is not modelled.
"""

from fractions import Fraction
from typing import Annotated, Literal, get_args

from pydantic import Field, model_validator

from samestep.app.calculators.no_sync_timeline.programs import Order, Program, ProgramName, named
from samestep.app.calculators.no_sync_timeline.wrappers import DDP, FSDP2, Replicas, agree, buckets
from samestep.app.contract import models
from samestep.app.contract.errors import InputError
from samestep.app.contract.fields import JSON, Flag, OrBlank, Positive, RankRows, Real, at_most, whole_numbers
from samestep.app.contract.forms import Form
from samestep.app.contract.limits import MAX_EXACT_CELLS, MAX_RANKS
from samestep.app.contract.numbers import fraction_text
from samestep.app.mathematics.element_size import BYTES, Dtype

Wrapper = Literal["ddp", "fsdp2"]
Unused = Literal["nowhere", "one_rank", "everywhere"]
Outcome = Literal["steps", "waits", "raises"]

_STUCK: dict[Unused, Outcome] = {"nowhere": "steps", "one_rank": "waits", "everywhere": "raises"}
"""What becomes of a reduction when a parameter has no gradient there, and nobody looks for it."""

MAX_PARAMETERS = 10**12
MAX_TENSORS = 10_000

Gradients = Annotated[list[list[Real]], at_most(MAX_EXACT_CELLS), Form("matrix")]
Sizes = Annotated[tuple[int, ...], whole_numbers(1, MAX_PARAMETERS)]
Cap = Annotated[Positive | None, OrBlank]


_EXAMPLE = [[Fraction(cell) for cell in row] for row in ((1, 2, 4), (3, 6, 12))]


class OwnProgram(models.Inputs):
    """A program of one's own: `forward` and `backward` say, a microstep each, whether synchronisation is on."""

    name: str = Field(min_length=1, max_length=120)
    forward: list[bool] = Field(min_length=1)
    backward: list[bool] = Field(min_length=1)
    order: Order = "alternating"


class _Wrapped(models.Inputs):
    """How the model is wrapped: what a body and the panel have in common."""

    wrapper: Wrapper = "ddp"
    parameters: Sizes = Field(default=(300_000,) * 4, examples=[[300_000, 300_000, 300_000, 300_000]])
    dtype: Dtype = "float32"
    bucket_cap_mb: Cap = None
    find_unused_parameters: Flag = False
    unused: Unused = "nowhere"


class Inputs(_Wrapped):
    """The gradients of a window, rows ranks and columns microsteps, and how the model is wrapped.

    `parameters` are the sizes of the tensors in the order of definition; under FSDP2 each is a group of its own.
    `unused` says on which ranks one of them has no gradient; `programs` are compared beside the named ones.
    """

    gradients: Gradients = Field(
        default=_EXAMPLE, min_length=2, max_length=MAX_RANKS, examples=[[[1, 2, 4], [3, 6, 12]]]
    )
    programs: Annotated[list[OwnProgram], JSON] = Field(default=[], max_length=16)

    @model_validator(mode="after")
    def _fits(self) -> "Inputs":
        widths = {len(row) for row in self.gradients}
        if len(widths) > 1 or 0 in widths:
            en, zh = "need the same number of microsteps on every rank", "每个 rank 的微步数应相同"
            raise InputError(en, zh, field="gradients", code="shape_mismatch")
        if len(self.parameters) > MAX_TENSORS:
            en, zh = f"are more than {MAX_TENSORS:,}", f"超过 {MAX_TENSORS:,} 个"
            raise InputError(en, zh, field="parameters", code="too_long")
        for program in self.programs:
            if {len(program.forward), len(program.backward)} != {self.microsteps}:
                en = f"“{program.name}” needs one flag for each of the {self.microsteps} microsteps"
                zh = f"“{program.name}”应给 {self.microsteps} 个微步各一个标志"
                raise InputError(en, zh, field="programs", code="shape_mismatch")
        names = [*get_args(ProgramName), *(program.name for program in self.programs)]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise InputError(f"“{twice}” is there twice", f"“{twice}”出现了两次", field="programs", code="given_twice")
        if self.wrapper == "fsdp2":
            self._of_ddp_only()
        return self

    def _of_ddp_only(self) -> None:
        given = {
            "bucket_cap_mb": self.bucket_cap_mb is not None,
            "find_unused_parameters": self.find_unused_parameters,
            "unused": self.unused != "nowhere",
        }
        for field in (name for name, there in given.items() if there):
            en, zh = "is a matter of DDP, and not modelled under FSDP2", "只与 DDP 有关，FSDP2 下不模拟"
            raise InputError(en, zh, field=field, code="exclusive")

    @property
    def microsteps(self) -> int:
        return len(self.gradients[0])


class Query(_Wrapped, models.Query):
    """The panel: rows of gradients, and one of the named programs."""

    gradients: RankRows = Field(default="1,2,4;3,6,12", validate_default=True)
    scheme: ProgramName = "forwards_first"

    def inputs(self) -> Inputs:
        """The body that these fields stand for."""
        return Inputs(
            gradients=list(map(list, self.gradients)), **{name: getattr(self, name) for name in _Wrapped.model_fields}
        )


class EventResult(models.Result):
    """A forward or a backward of the program, microsteps counted from 0.

    `communicates` says whether gradients are reduced in it, `collectives` in how many calls. `grad` is what `.grad`
    holds on every rank afterwards (null: still None), `waiting` what FSDP2 holds beside it.
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
    ranks: int
    microsteps: int


def _listed(values: list[float | None] | list[int]) -> str:
    return " ".join("None" if value is None else repr(value) for value in values)


def compute(inputs: Inputs) -> Result:
    """Every program on the same gradients, exactly."""
    gradients = inputs.gradients
    reference = sum((cell for row in gradients for cell in row), start=Fraction(0)) / len(gradients)
    filled = list(inputs.parameters)
    first = filled
    if inputs.wrapper == "ddp":
        filled = buckets(filled, BYTES[inputs.dtype], inputs.bucket_cap_mb, inputs.find_unused_parameters)
        first = filled if inputs.find_unused_parameters else [sum(filled)]
    programs = {str(name): program for name, program in named(inputs.microsteps).items()}
    programs |= {own.name: Program(tuple(own.forward), tuple(own.backward), own.order) for own in inputs.programs}
    return Result(
        reference=float(reference),
        reference_exact=fraction_text(reference),
        buckets=filled,
        first_buckets=first,
        bytes_per_reduction=sum(filled) * BYTES[inputs.dtype],
        schemes={name: _run(program, gradients, reference, filled, inputs) for name, program in programs.items()},
    )


def _run(
    program: Program, gradients: list[list[Fraction]], reference: Fraction, filled: list[int], inputs: Inputs
) -> SchemeResult:
    ranks = len(gradients)
    replicas: Replicas = DDP(ranks) if inputs.wrapper == "ddp" else FSDP2(ranks)
    calls = len(filled) + inputs.find_unused_parameters
    events: list[EventResult] = []
    outcome: Outcome = "steps"
    for event in program.events():
        reduced = False
        if event.kind == "forward":
            replicas.forward(event)
        else:
            own = [sum((row[k] for k in event.microsteps), start=Fraction(0)) for row in gradients]
            reduced = replicas.backward(event, own)
            if reduced and not inputs.find_unused_parameters:
                outcome = _STUCK[inputs.unused]
        if outcome != "steps":
            break
        events.append(
            EventResult(
                kind=event.kind,
                microsteps=list(event.microsteps),
                sync=event.sync,
                communicates=reduced,
                collectives=calls if reduced else 0,
                grad=list(map(_number, replicas.grad)),
                waiting=list(map(float, replicas.waiting)),
            )
        )
    return _judged(events, outcome, replicas, reference, sum(filled))


def _judged(
    events: list[EventResult], outcome: Outcome, replicas: Replicas, reference: Fraction, elements: int
) -> SchemeResult:
    steps = outcome == "steps"
    final = list(replicas.grad) if steps else [None] * len(replicas.grad)
    there = [value for value in final if value is not None]
    reason: models.Reason | None = None if there else "not_reduced" if steps else "not_reached"
    alike = agree(final)
    waiting = list(map(float, replicas.waiting))
    ratio = there[0] / reference if there and alike and reference else None
    if reason is None and not reference:
        reason = "zero_reference"
    reductions = sum(event.communicates for event in events)
    return SchemeResult(
        defined=bool(there),
        reason=reason,
        outcome=outcome,
        events=events,
        final=list(map(_number, final)),
        final_exact=[None if value is None else fraction_text(value) for value in final],
        left_behind=waiting,
        replicas_agree=alike,
        matches_reference=bool(there) and set(final) == {reference} and not any(waiting),
        ratio_to_reference=None if ratio is None else float(ratio),
        reductions=reductions,
        collectives=sum(event.collectives for event in events),
        elements_reduced=reductions * elements,
    )


def _number(value: Fraction | None) -> float | None:
    return None if value is None else float(value)


def present(inputs: Inputs, scheme: str | None = None) -> View:
    """What is shown of a body, with one of the programs selected: the right one, unless `scheme` names another."""
    result = compute(inputs)
    selected = models.chosen(result.schemes, scheme)
    return View(
        **dict(result),
        selected=selected,
        current=result.schemes[selected],
        wrapper=inputs.wrapper,
        ranks=len(inputs.gradients),
        microsteps=inputs.microsteps,
    )
