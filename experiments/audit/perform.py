"""Run the reader's step once on this rank: the reference, a part of the basis, or the real thing."""

import gc
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from samestep.experiments.audit import taps
from samestep.experiments.audit.context import Context, Data
from samestep.experiments.audit.failure import ReaderError
from samestep.experiments.audit.plans import Plan
from samestep.experiments.audit.reader import built_digest, digest, load
from samestep.experiments.audit.recorder import Recorder
from samestep.experiments.audit.rows import Rows
from samestep.experiments.audit.trace import Trace
from samestep.experiments.audit.worlds import World

UNSEEDED = (
    "build() is not seeded: {}. Call torch.manual_seed(…) at its beginning, so that every process starts with the same "
    "model"
)
WAITS = "its step is over; waiting for the other ranks"


class UnequalStartError(ReaderError):
    """The ranks start with different models or data. All of them raise it."""


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


def alone(place: Path, dtype: torch.dtype, device: torch.device, folder: Path, part: Sequence[int] | None) -> Trace:
    """The plain update on one process as one microbatch, of all samples or of a part (then only its gradient is kept).

    Gradients that build() left behind are cleared: the reference is the clean update.
    """
    file = load(place, dtype)
    model, optimizer = file.build()
    data, weights = file.data(), file.weights(file.data())
    chosen = list(range(samples_of(data))) if part is None else list(part)
    if part is not None:
        index = torch.tensor(chosen, dtype=torch.long)
        data = {name: tensor[index.to(tensor.device)] for name, tensor in data.items()}
    model.zero_grad(set_to_none=True)
    optimizer.zero_grad(set_to_none=True)
    recorder = Recorder(Trace(0, folder), model, optimizer, Rows(data if part is None else {}))
    if part is None:
        recorder.keep_initial()
    weight = sum(weights[i] for i in chosen)
    context = Context(0, 1, device, [range(len(chosen))], len(chosen), weight, recorder.note)
    before = taps.issued()
    with taps.listening(recorder):
        file.reference(context, model, optimizer, data)
    recorder.finish(lambda mine: mine, taps.issued() - before, whole=part is None)
    return _kept(recorder.trace)


def together(
    place: Path,
    dtype: torch.dtype,
    device: torch.device,
    folder: Path,
    plan: Plan,
    world: World,
    tell: Callable[[str], None],
) -> Trace:
    """The reader's step on all ranks, each with its share. Raises ReaderError, on every rank, if they start unequal."""
    file = load(place, dtype)
    model, optimizer = file.build()
    data = file.data()
    weights = file.weights(data)
    starts = world.gather((built_digest(model, optimizer), digest(data)))
    for what, found in zip(("build()", "data()"), zip(*starts, strict=True), strict=True):
        if len(set(found)) > 1:
            odd = next(rank for rank, each in enumerate(found) if each != found[0])
            raise UnequalStartError(f"{what} is not the same on every process: rank {odd} starts unlike rank 0")
    recorder = Recorder(Trace(world.rank, folder), model, optimizer, Rows(data))
    context = Context(
        world.rank, world.size, device, plan.cells[world.rank], samples_of(data), sum(weights), recorder.note
    )
    tell("step()")
    before = taps.issued()
    with taps.listening(recorder):
        file.step(context, model, optimizer, data)
    issued = taps.issued() - before
    tell(WAITS)

    def agree(mine: set[str]) -> set[str]:
        return set.intersection(*world.gather(mine))

    recorder.finish(agree, issued, whole=True)
    return _kept(recorder.trace)


def _kept(trace: Trace) -> Trace:
    (trace.folder / "trace.pickle").write_bytes(pickle.dumps(trace))
    gc.collect()
    return trace


def loaded(folder: Path) -> Trace:
    """A trace from its folder."""
    trace: Trace = pickle.loads((folder / "trace.pickle").read_bytes())
    return trace.load()
