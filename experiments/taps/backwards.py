"""Every outermost backward as one value: the tokens of its losses, its terms, and its contribution to each parameter.

Before the engine runs, the graph is read and hooks are put on the nodes of losses; they are taken off when it has run.
A backward that is called within another one (reentrant checkpointing) belongs to it, and its graph is read only where
a loss may be in it: where its root is a scalar.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.autograd.graph import Node

from samestep.experiments.taps import features, graph, losses, sites, sketches, terms
from samestep.experiments.taps.engine import Engine
from samestep.experiments.taps.parameters import Parameters
from samestep.experiments.taps.patches import Patches
from samestep.experiments.taps.terms import Term
from samestep.experiments.taps.tokens import Source


@dataclass
class Backward:
    """What one outermost backward did.

    contributions   number of a parameter → sketch of the gradient that this backward alone brings, before any reduction
    types           the types of these gradients
    ends            what the graph ends in where no token loss was found
    """

    number: int
    line: str | None
    sources: list[Source] = field(default_factory=list)
    terms: list[Term] = field(default_factory=list)
    contributions: dict[int, Tensor] = field(default_factory=dict)
    types: set[str] = field(default_factory=set)
    ends: list[str] = field(default_factory=list)


class Backwards:
    """The wrapped entry points. `listener` hears of outermost backwards; nothing happens while `listening` is False."""

    def __init__(self, listener: Any) -> None:
        self.listener = listener
        self.listening = True
        self.count = 0
        self.current: Backward | None = None
        self.parameters = Parameters(self._seen)
        self.engine = Engine(self._around)

    def install(self, patches: Patches) -> None:
        self.engine.install(patches)
        patches.later(self.parameters.unhook)

    @contextmanager
    def _around(self, name: str, roots: Any, more: tuple[Any, ...], named: dict[str, Any]) -> Iterator[None]:
        if not self.listening:
            yield
            return
        outermost, hooks = self.engine.depth == 0, list[Callable[[], None]]()
        with self.guarded():
            nodes = _roots(roots)
            if outermost:
                self._begin()
                if not self.listening:  # the listener has seen enough, or met what cannot be watched
                    self.current = None
            if self.current is not None and (outermost or all(map(graph.is_scalar, nodes))):
                hooks = self._read(self.current, nodes)
        try:
            yield
        except BaseException:
            self.current = None if outermost else self.current
            raise
        finally:
            for remove in hooks:
                remove()
        if outermost and self.current is not None:
            seen, self.current = self.current, None
            with self.guarded():
                self.listener.backward_ended(seen)

    def _begin(self) -> None:
        features.look(self.parameters, self.listener)
        self.parameters.hook()
        self.listener.backward_begins(self._without_gradient())
        self.current = Backward(self.count, sites.line())
        self.count += 1

    def _without_gradient(self) -> list[int]:
        """Plain parameters whose gradient is None; sharded ones may hold theirs elsewhere until they are reduced."""
        return [
            tag
            for tag, parameter in self.parameters.living()
            if parameter.grad is None and not any(hasattr(parameter, name) for name in _GRADIENT_ELSEWHERE)
        ]

    def _read(self, current: Backward, roots: list[Node]) -> list[Callable[[], None]]:
        seen, found, hooks = losses.sources(roots)
        first = len(current.sources)
        if self.engine.depth == 0:
            current.terms, more = terms.terms(roots, found)
            hooks += more
        current.sources += found
        if not found and not first and self.engine.depth == 0:
            current.ends = list(dict.fromkeys(_last_words(roots)))
        if self.count == 1 and self.engine.depth == 0:
            features.read_model(roots, self.listener)
        features.read_losses(seen, found, self.listener)
        return hooks

    def _seen(self, tag: int, gradient: Tensor) -> None:
        """A parameter's gradient came by, the part of this backward alone."""
        if self.current is None:
            return
        with self.guarded():
            made = sketches.sketch(gradient)
            sum_so_far = self.current.contributions.get(tag)
            self.current.contributions[tag] = made if sum_so_far is None else sum_so_far + made
            self.current.types.add(str(gradient.dtype).removeprefix("torch."))

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """A fault of ours ends here."""
        try:
            yield
        except Exception as error:  # whatever it is, the reader's training must not notice
            self.listener.fault(error)


_GRADIENT_ELSEWHERE = ("placements", "_hp_mapping", "ds_id")


def _roots(tensors: Any) -> list[Node]:
    """Nodes of what a backward was called on: tensors, edges, or a sequence of them."""
    several: Iterable[Any] = tensors if isinstance(tensors, (list, tuple)) else (tensors,)
    nodes = (each.grad_fn if isinstance(each, Tensor) else getattr(each, "node", None) for each in several)
    return [node for node in nodes if node is not None]


def _last_words(roots: list[Node]) -> Iterator[str]:
    """What a loss without known tokens is made of, in words that its author knows."""
    seen = graph.walk(roots)
    made = [graph.operation(node) for node in seen.nodes if graph.is_function(node)]
    functions = [name for name in made if not name.endswith("DDPSink")]
    if functions:
        yield from functions[:3]
        return
    plain = ("Add", "Sub", "Mul", "Div", "Neg", "AccumulateGrad")
    others = [n for n in seen.nodes if not graph.is_view(n) and not graph.operation(n).startswith(plain)]
    yield from [graph.operation(node) for node in others[:3]]
