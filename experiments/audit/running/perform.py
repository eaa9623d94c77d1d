"""Run the reader's step on this rank: the reference, a variation of it, or the real thing."""

import gc
import pickle
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import nn

from samestep.experiments.audit.failure import ReaderError
from samestep.experiments.audit.running import taps
from samestep.experiments.audit.running.context import Context, Data
from samestep.experiments.audit.running.plans import Plan
from samestep.experiments.audit.running.reader import Built, ReaderFile, built_digest, digest, load
from samestep.experiments.audit.running.recorder import Recorder
from samestep.experiments.audit.running.repetition import Repetition
from samestep.experiments.audit.running.rows import Rows
from samestep.experiments.audit.running.sites import Sites
from samestep.experiments.audit.running.trace import Run, Trace
from samestep.experiments.audit.running.vectors import Array, Vectors
from samestep.experiments.audit.running.worlds import World

UNSEEDED = (
    "build() is not seeded: {}. Call torch.manual_seed(…) at its beginning, so that every process starts with the same "
    "model"
)
WAITS = "its step is over; waiting for the other ranks"
CALLED = "step()"
AGAIN = "the second call of step() on one process failed ({})"


class UnequalStartError(ReaderError):
    """The ranks start with different models or data. All of them raise it."""


@dataclass(frozen=True)
class Variation:
    """How a run on one process departs from the reference.

    part    only these samples
    shares  step() itself, with these microbatches, and what each adds is kept
    term    only this summand of the loss carries a gradient, by its name in a trace
    begin   parameters and buffers to begin with
    move    added to the parameters before the step
    under   a context to run the step in
    """

    part: Sequence[int] | None = None
    shares: Sequence[Sequence[int]] | None = None
    term: str | None = None
    begin: Trace | None = None
    move: Mapping[str, Array] | None = field(default=None, repr=False)
    under: Callable[[], AbstractContextManager[object]] = nullcontext


def samples_of(data: Data) -> int:
    """How many rows the batch has."""
    return len(next(iter(data.values())))


def check_twice(place: Path, dtype: torch.dtype) -> int:
    """Build and read twice, and count the samples; raises ReaderError where a bit differs."""
    file = load(place, dtype)
    if built_digest(*file.build()) != built_digest(*file.build()):
        raise ReaderError(UNSEEDED.format("two calls in a row give different models or optimizers"))
    data = file.data()
    if digest(data) != digest(file.data()):
        raise ReaderError("data() gives different tensors each time it is called; seed it")
    if samples_of(data) == 0:
        raise ReaderError("data() has no rows: there is nothing to audit")
    return samples_of(data)


def reference(place: Path, dtype: torch.dtype, device: torch.device, folder: Path, calls: int) -> Run:
    """The plain update on one process as one microbatch, `calls` times in a row where the file allows that.

    Gradients that are left over, by build() or by the call before, are cleared: the reference is the clean update.
    """
    file, built, data, recorder, context = _prepared(place, dtype, device, folder, Variation())
    recorder.keep_initial()
    repetition = Repetition(built)
    for call in range(calls):
        if call:
            recorder.run.once = repetition.hindrance(recorder)
            if recorder.run.once:
                break
            recorder.begin(call)
            recorder.keep_initial()
            _cleared(built)
        try:
            _run(recorder, lambda: file.reference(context, built.model, built.optimizer, data, built.others))
        except ReaderError as error:
            if not call:
                raise
            recorder.forget_call()
            recorder.run.once = AGAIN.format(error.message)
            break
        recorder.finish(lambda mine: mine, whole=True)
    return _kept(recorder.run, folder)


def vary(place: Path, dtype: torch.dtype, device: torch.device, folder: Path, variation: Variation) -> Trace:
    """The first update of a variation of the reference: its gradients, losses and events."""
    file, built, data, recorder, context = _prepared(place, dtype, device, folder, variation)
    run = file.reference if variation.shares is None else file.step
    if variation.shares is not None:
        recorder.catch_contributions()
    with variation.under():
        _run(recorder, lambda: run(context, built.model, built.optimizer, data, built.others))
    recorder.finish(lambda mine: mine, whole=False)
    recorder.stop()
    return _kept(recorder.run, folder).updates[0].load()


def _prepared(
    place: Path, dtype: torch.dtype, device: torch.device, folder: Path, variation: Variation
) -> tuple[ReaderFile, Built, Data, Recorder, Context]:
    file = load(place, dtype)
    built = file.built()
    data = file.data()
    weights = file.weights(data)
    part = variation.part
    chosen = list(range(samples_of(data))) if part is None else list(part)
    if part is not None:
        index = torch.tensor(chosen, dtype=torch.long)
        data = {name: tensor[index.to(tensor.device)] for name, tensor in data.items()}
    _cleared(built)
    _placed(built.model, variation)
    recorder = Recorder(folder, 0, built, Rows(data if part is None else {}), Sites(place), term=variation.term)
    weight = sum(weights[i] for i in chosen)
    shares = variation.shares or [range(len(chosen))]
    context = Context(0, 1, device, shares, len(chosen), weight, recorder.note, recorder.term, recorder.dealt)
    return file, built, data, recorder, context


def _cleared(built: Built) -> None:
    built.model.zero_grad(set_to_none=True)
    for optimizer in built.optimizers:
        optimizer.zero_grad(set_to_none=True)


@torch.no_grad()
def _placed(model: nn.Module, variation: Variation) -> None:
    """Begin where the variation begins, moved as it says."""
    parameters, buffers = dict(model.named_parameters()), dict(model.named_buffers())
    if variation.begin is not None:
        for kind, there in (("initial", parameters), ("buffers", buffers)):
            known: Vectors | dict[str, Array] = variation.begin.vectors.get(kind, {})
            for name in known:
                if name in there:
                    _real(there[name]).copy_(torch.from_numpy(known[name]))
    for name, change in (variation.move or {}).items():
        real = _real(parameters[name])
        real.add_(torch.from_numpy(change).to(real.dtype))


def _real(tensor: torch.Tensor) -> torch.Tensor:
    """The numbers of a tensor as they are kept: a view of both parts of a complex one."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def _run(recorder: Recorder, step: Callable[[], None]) -> None:
    if recorder.trace.call:
        gc.collect()  # a wrapper of the call before, which nobody holds any more, must not listen to this one
    recorder.count()
    with taps.listening(recorder):
        step()
    recorder.count()


def together(
    place: Path,
    dtype: torch.dtype,
    device: torch.device,
    folder: Path,
    plan: Plan,
    world: World,
    tell: Callable[..., None],
    calls: int,
) -> Run:
    """The reader's step on all ranks, each with its share. Raises ReaderError, on every rank, if they start unequal."""
    file = load(place, dtype)
    built = file.built()
    data = file.data()
    weights = file.weights(data)
    starts = world.gather((built_digest(built.model, built.optimizer, *built.others), digest(data)))
    for what, found in zip(("build()", "data()"), zip(*starts, strict=True), strict=True):
        if len(set(found)) > 1:
            odd = next(rank for rank, each in enumerate(found) if each != found[0])
            raise UnequalStartError(f"{what} is not the same on every process: rank {odd} starts unlike rank 0")
    recorder = Recorder(folder, world.rank, built, Rows(data), Sites(place))
    context = Context(
        world.rank,
        world.size,
        device,
        plan.cells[world.rank],
        samples_of(data),
        sum(weights),
        recorder.note,
        recorder.term,
        recorder.dealt,
    )
    recorder.catch_contributions()
    repetition = Repetition(built)

    def agree(mine: set[str]) -> set[str]:
        return set.intersection(*world.gather(mine))

    for call in range(calls):
        if call:
            hindrances = world.gather(repetition.hindrance(recorder))
            recorder.run.once = next(filter(None, hindrances), "")
            if recorder.run.once:
                break
            recorder.begin(call)
        tell(CALLED if calls == 1 else f"{CALLED}, call {call + 1}")
        _run(recorder, lambda: file.step(context, built.model, built.optimizer, data, built.others))
        tell(WAITS, _unused(recorder.trace))
        recorder.finish(agree, whole=True)
    recorder.stop()
    return _kept(recorder.run, folder)


def _unused(trace: Trace) -> str:
    """What helps if other ranks wait in a wrapper's reduction for gradients that this rank never made."""
    names = trace.none_gradients
    if not names or not trace.forwards["ddp"]:
        return ""
    return (
        f"hint: rank {trace.rank} made no gradient for {', '.join(names[:6])}, and DistributedDataParallel waits for "
        f"it: pass find_unused_parameters=True, or let every rank use every parameter."
    )


def _kept(run: Run, folder: Path) -> Run:
    (folder / "run.pickle").write_bytes(pickle.dumps(run))
    gc.collect()
    return run


def loaded(folder: Path) -> Run:
    """A run from its folder."""
    run: Run = pickle.loads((folder / "run.pickle").read_bytes())
    return run.load()
