"""The reader's file: load it afresh, check what it defines and returns, and tell its own mistakes from ours."""

import hashlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from inspect import Parameter, signature
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from samestep.experiments.audit.failure import ReaderError
from samestep.experiments.audit.running.context import Context, Data
from samestep.experiments.taps import sites

REQUIRED = ("build", "data", "step")
COMPLEX = {torch.float64: torch.complex128, torch.float32: torch.complex64}

Step = Callable[..., object]


@dataclass(frozen=True)
class Built:
    """What build() made: the model, what it returned as optimizer (one, or several in a list or a dictionary), others.

    `others`: schedulers, a scaler, a moving average …: whatever it returned after that.
    """

    model: nn.Module
    optimizer: Any
    others: tuple[Any, ...] = ()
    module: ModuleType | None = field(default=None, repr=False)

    @property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        """All optimizers in order."""
        return [each for value in (self.optimizer, *self.others) for each in _optimizers_in(value)]

    def held(self) -> dict[str, Any]:
        """What the file holds beside model and optimizers: others, and its global names that are no code."""
        own = (self.model, self.optimizer, *self.others)
        names = vars(self.module) if self.module else {}
        globals_ = {
            name: value
            for name, value in names.items()
            if not name.startswith("__")
            and not isinstance(value, (ModuleType, type, torch.optim.Optimizer))
            and (not callable(value) or isinstance(value, nn.Module))
            and not any(value is each for each in own)
        }
        others = {type(each).__name__: each for each in self.others if not _optimizers_in(each)}
        return others | globals_


def _optimizers_in(value: Any) -> list[torch.optim.Optimizer]:
    if isinstance(value, torch.optim.Optimizer):
        return [value]
    inside = value.values() if isinstance(value, Mapping) else value if isinstance(value, (list, tuple)) else ()
    return [each for each in inside if isinstance(each, torch.optim.Optimizer)]


@contextmanager
def blamed(place: Path, doing: str) -> Iterator[None]:
    """Turn whatever the reader's code raises, `sys.exit` included, into a ReaderError with its own traceback."""
    try:
        yield
    except ReaderError:
        raise
    except BaseException as error:
        raise ReaderError(f"{doing}: {_summary(error)}", own_traceback(error, place)) from error


def _summary(error: BaseException) -> str:
    return traceback.format_exception_only(error)[-1].strip()


def own_traceback(error: BaseException, place: Path) -> str:
    """The traceback from the reader's first line on, without a frame of this package in it."""
    frames = traceback.extract_tb(error.__traceback__)
    first = next((i for i, frame in enumerate(frames) if Path(frame.filename) == place), len(frames))
    kept = [frame for frame in frames[first:] if not sites.is_ours(frame.filename)]
    head = "Traceback (most recent call last):\n" if kept else ""
    return head + "".join(traceback.format_list(kept)) + "".join(traceback.format_exception_only(error))


@dataclass(frozen=True)
class ReaderFile:
    """The functions of a freshly loaded file, checked as they are called."""

    place: Path
    module: ModuleType
    dtype: torch.dtype

    def build(self) -> tuple[Any, ...]:
        """Model, optimizer and whatever else the file returns, the model in the audit's floating-point type."""
        with blamed(self.place, "build() failed"):
            made = self.module.build()
        if not (
            isinstance(made, tuple) and len(made) >= 2 and isinstance(made[0], nn.Module) and _optimizers_in(made[1])
        ):
            raise ReaderError(f"build() must return (model, optimizer), it returned {_described(made)}")
        made[0]._apply(self._converted)  # type: ignore[no-untyped-call]
        return made

    def built(self) -> Built:
        """The same with names."""
        model, optimizer, *others = self.build()
        return Built(model, optimizer, tuple(others), self.module)

    def data(self) -> Data:
        """The whole batch: tensors of as many rows."""
        with blamed(self.place, "data() failed"):
            given = self.module.data()
        if not isinstance(given, Mapping) or not given:
            raise ReaderError(f"data() must return a dictionary of tensors, it returned {_described(given)}")
        for name, tensor in given.items():
            if not isinstance(tensor, torch.Tensor) or tensor.dim() == 0:
                raise ReaderError(f"data()[{name!r}] must be a tensor whose first axis is the samples")
        counts = {name: len(tensor) for name, tensor in given.items()}
        if len(set(counts.values())) > 1:
            listed = ", ".join(f"{name}: {count}" for name, count in counts.items())
            raise ReaderError(f"the tensors of data() must have equally many rows, one a sample; they have {listed}")
        return {name: self._converted(tensor.detach()) for name, tensor in given.items()}

    def _converted(self, tensor: torch.Tensor) -> torch.Tensor:
        """In the audit's type; a complex one keeps both of its parts."""
        if tensor.is_complex():
            return tensor.to(COMPLEX.get(self.dtype, tensor.dtype))
        return tensor.to(self.dtype) if tensor.is_floating_point() else tensor

    def weights(self, data: Data) -> list[float]:
        """Weight of each sample, 1 unless the file says otherwise."""
        samples = len(next(iter(data.values())))
        if not hasattr(self.module, "weights"):
            return [1.0] * samples
        with blamed(self.place, "weights(data) failed"):
            given = self.module.weights(data)
        if not isinstance(given, torch.Tensor) or given.shape != (samples,):
            raise ReaderError(f"weights(data) must return a tensor of {samples} numbers, got {_described(given)}")
        weights = [float(weight) for weight in given]
        wrong = next((weight for weight in weights if not 0 <= weight < float("inf")), None)
        if wrong is not None:
            raise ReaderError(f"weights(data) must not be negative and must be finite, one is {wrong:g}")
        return weights

    def step(
        self, context: Context, model: nn.Module, optimizer: Any, data: Data, others: tuple[Any, ...] = ()
    ) -> None:
        """One update, as the reader trains."""
        with blamed(self.place, "step() failed"):
            _call(self.module.step, context, model, optimizer, data, others)

    def reference(
        self, context: Context, model: nn.Module, optimizer: Any, data: Data, others: tuple[Any, ...] = ()
    ) -> None:
        """The plain update: the reader's own, or step() with one process and one microbatch."""
        if not hasattr(self.module, "reference"):
            self.step(context, model, optimizer, data, others)
            return
        with blamed(self.place, "reference() failed"):
            _call(self.module.reference, context, model, optimizer, data, others)


def _call(function: Step, context: Context, model: nn.Module, optimizer: Any, data: Data, others: Any) -> None:
    """Call the reader's function: (ctx, model, optimizer, data), and the others of build() where it takes more.

    The argument that is called `data` (else the fourth) gets the batch, the rest what build() returned, in order.
    """
    if not others:
        function(context, model, optimizer, data)
        return
    kinds = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    names = [name for name, each in signature(function).parameters.items() if each.kind in kinds]
    made = [optimizer, *others]
    at = names.index("data") if "data" in names else 3
    given = [*made[: at - 2], data, *made[at - 2 :]]
    function(context, model, *given[: len(names) - 2])


def _described(value: object) -> str:
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}: ({', '.join(type(each).__name__ for each in value)})"
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    return "None" if value is None else f"a value of type {type(value).__name__}"


def load(place: Path, dtype: torch.dtype) -> ReaderFile:
    """Run the file as a new module, with its folder importable; raises ReaderError."""
    if not place.is_file():
        raise ReaderError(f"there is no file {place}")
    _come_first(str(place.parent))
    name = f"audited_{place.stem}"
    spec = importlib.util.spec_from_file_location(name, place)
    if spec is None or spec.loader is None:
        raise ReaderError(f"{place.name} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    with blamed(place, f"{place.name} could not be loaded"):
        spec.loader.exec_module(module)
    missing = [f"{each}()" for each in REQUIRED if not callable(getattr(module, each, None))]
    if missing:
        raise ReaderError(f"{place.name} does not define {' and '.join(missing)}")
    return ReaderFile(place, module, dtype)


_ELSEWHERE = set(sys.modules)
"""Modules that are in no reader's folder: those that were there before any file was loaded, and libraries."""
_FOLDERS: set[str] = set()
"""Readers' folders that files were loaded from."""


def _come_first(folder: str) -> None:
    """Let names be looked for in this reader's folder before any other, and forget what earlier runs have loaded.

    So no run sees another's module state, nor a module of the same name beside another file.
    """
    sys.path[:] = [folder, *(place for place in sys.path if place != folder)]
    _FOLDERS.add(folder)
    for name in sys.modules.keys() - _ELSEWHERE:
        source = getattr(sys.modules[name], "__file__", None)
        if source and os.path.dirname(source) in _FOLDERS:
            del sys.modules[name]
        elif source is None or f"{os.sep}site-packages{os.sep}" in source:
            _ELSEWHERE.add(name)


def digest(values: Any) -> str:
    """A digest of a model's and its optimizer's state, or of a dictionary of tensors: equal only if every bit is."""
    total = hashlib.blake2b(digest_size=16)
    _feed(total, values)
    return total.hexdigest()


def _feed(total: "hashlib.blake2b", value: Any) -> None:
    if isinstance(value, torch.Tensor):
        tensor = value.detach().cpu().contiguous()
        total.update(f"{tuple(tensor.shape)}{tensor.dtype}".encode())
        total.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    elif isinstance(value, Mapping):
        for key, each in value.items():
            total.update(str(key).encode())
            _feed(total, each)
    elif isinstance(value, (list, tuple)):
        for each in value:
            _feed(total, each)
    else:
        text = repr(value)
        total.update((type(value).__name__ if " at 0x" in text else text).encode())


def built_digest(model: nn.Module, *others: Any) -> str:
    """A digest of everything that build() decides."""
    return digest([model.state_dict(), *(_state(each) for each in others)])


def _state(value: Any) -> Any:
    """What can be compared of an object: its state_dict(), else the numbers and tensors that it is."""
    if isinstance(value, Mapping):
        return {key: _state(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_state(each) for each in value]
    if callable(getattr(value, "state_dict", None)):
        return value.state_dict()
    return value if isinstance(value, (torch.Tensor, int, float, str)) else type(value).__name__
