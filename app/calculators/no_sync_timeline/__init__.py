"""Which backward of an accumulation window communicates, and what is in `.grad` after each.

Words and symbols: P ranks, K microsteps, g_rk the gradient that microstep k has on rank r (its loss already divided as
it should be). What the window means is the mean over the ranks of the ranks' sums,

    g* = (1/P) Σ_r Σ_k g_rk

A program says in which order forwards and backwards run, and in which of them gradient synchronisation is on (see
`programs`); DDP looks at the forward, FSDP2 at the backward (see `wrappers`; measured on torch 2.13 by the experiment
of the same name), and so does hybrid sharding, where the switch is that of the all-reduce between its groups. A
parameter without a gradient is another matter: with `unused` on one rank, DDP's other ranks wait
for a bucket that never gets full; everywhere, nothing is reduced and the next forward raises; with
`find_unused_parameters` both work, at one more all-reduce a reduction. FSDP2's answer to it is not modelled.
"""

from fractions import Fraction
from typing import Annotated, Literal, get_args

from pydantic import Field, model_validator

from samestep.app.calculators.no_sync_timeline.programs import Order, Program, ProgramName, named
from samestep.app.calculators.no_sync_timeline.results import (
    EventResult,
    Outcome,
    Result,
    SchemeResult as SchemeResult,
    View,
    Wrapper,
)
from samestep.app.calculators.no_sync_timeline.wrappers import DDP, FSDP2, HSDP, AddedAfter, Replicas, agree, buckets
from samestep.app.contract import models
from samestep.app.contract.errors import InputError
from samestep.app.contract.fields import (
    JSON,
    Flag,
    OrBlank,
    Positive,
    RankRows,
    Real,
    at_most,
    whole_number,
    whole_numbers,
)
from samestep.app.contract.forms import Form
from samestep.app.contract.limits import MAX_EXACT_CELLS, MAX_RANKS
from samestep.app.contract.numbers import fraction_text
from samestep.app.mathematics.element_size import BYTES, Dtype

Unused = Literal["nowhere", "one_rank", "everywhere"]

_STUCK: dict[Unused, Outcome] = {"nowhere": "steps", "one_rank": "waits", "everywhere": "raises"}
"""What becomes of a reduction when a parameter has no gradient there, and nobody looks for it."""

MAX_PARAMETERS = 10**12
MAX_TENSORS = 10_000

Gradients = Annotated[list[list[Real]], at_most(MAX_EXACT_CELLS), Form("matrix")]
Sizes = Annotated[tuple[int, ...], whole_numbers(1, MAX_PARAMETERS)]
Cap = Annotated[Positive | None, OrBlank]
Groups = Annotated[Annotated[int, whole_number(1, MAX_RANKS)] | None, OrBlank]


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
    replica_groups: Groups = None
    parameters: Sizes = Field(default=(300_000,) * 4, examples=[[300_000, 300_000, 300_000, 300_000]])
    dtype: Dtype = "float32"
    bucket_cap_mb: Cap = None
    find_unused_parameters: Flag = False
    unused: Unused = "nowhere"


class Inputs(_Wrapped):
    """The gradients of a window, rows ranks and columns microsteps, and how the model is wrapped.

    `parameters` are the sizes of the tensors in the order of definition; under FSDP2 each is a group of its own.
    `replica_groups` are the groups of neighbouring ranks that hold the same shards under hybrid sharding, 2 by default.
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
        if self.wrapper != "ddp":
            self._of_ddp_only()
        if self.wrapper != "hsdp" and self.replica_groups is not None:
            en, zh = "belong to hybrid sharding (hsdp)", "只用于混合分片（hsdp）"
            raise InputError(en, zh, field="replica_groups", code="exclusive")
        if self.wrapper == "hsdp" and len(self.gradients) % self.groups:
            ranks = len(self.gradients)
            en, zh = f"must divide the {ranks} ranks", f"应整除 rank 数 {ranks}"
            raise InputError(en, zh, field="replica_groups", code="multiple_of")
        return self

    @property
    def groups(self) -> int:
        return 2 if self.replica_groups is None else self.replica_groups

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
    schemes = {name: _run(program, _wrapped(inputs), reference, filled, inputs) for name, program in programs.items()}
    if inputs.wrapper == "hsdp":
        apart = AddedAfter(len(gradients), inputs.groups)
        last = named(inputs.microsteps)["last_synchronised"]
        schemes["added_after_all_reduce"] = _run(last, apart, reference, filled, inputs)
    return Result(
        reference=float(reference),
        reference_exact=fraction_text(reference),
        buckets=filled,
        first_buckets=first,
        bytes_per_reduction=sum(filled) * BYTES[inputs.dtype],
        schemes=schemes,
    )


def _wrapped(inputs: Inputs) -> Replicas:
    ranks = len(inputs.gradients)
    if inputs.wrapper == "hsdp":
        return HSDP(ranks, inputs.groups)
    return DDP(ranks) if inputs.wrapper == "ddp" else FSDP2(ranks)


def _run(program: Program, replicas: Replicas, reference: Fraction, filled: list[int], inputs: Inputs) -> SchemeResult:
    gradients = inputs.gradients
    calls = len(filled) + inputs.find_unused_parameters
    events: list[EventResult] = []
    outcome: Outcome = "steps"
    elements, of_a_shard = 0, sum(-(-size // replicas.shards) for size in filled)
    for event in program.events():
        rounds = 0
        if event.kind == "forward":
            replicas.forward(event)
        else:
            own = [sum((row[k] for k in event.microsteps), start=Fraction(0)) for row in gradients]
            rounds = replicas.backward(event, own)
            if rounds and not inputs.find_unused_parameters:
                outcome = _STUCK[inputs.unused]
        if outcome != "steps":
            break
        scatters = rounds > 0 and replicas.shards > 1
        elements += scatters * sum(filled) + (rounds - scatters) * of_a_shard
        events.append(
            EventResult(
                kind=event.kind,
                microsteps=list(event.microsteps),
                sync=event.sync,
                communicates=rounds > 0,
                collectives=calls * rounds,
                grad=list(map(_number, replicas.grad)),
                waiting=list(map(float, replicas.waiting)),
            )
        )
    return _judged(events, outcome, replicas, reference, elements)


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
        elements_reduced=elements,
    )


def _number(value: Fraction | None) -> float | None:
    return None if value is None else float(value)


def present(inputs: Inputs, scheme: str | None = None) -> View:
    """What is shown of a body, with one of the programs selected: the right one, unless `scheme` names another."""
    result = compute(inputs)
    return View(
        **dict(result),
        **models.selection(result.schemes, scheme),
        wrapper=inputs.wrapper,
        groups=inputs.groups if inputs.wrapper == "hsdp" else None,
        ranks=len(inputs.gradients),
        microsteps=inputs.microsteps,
    )
