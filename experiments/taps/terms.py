"""The scalars whose sum is differentiated: each has its own factor, and its own tokens or none."""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.autograd.graph import Node

from samestep.experiments.taps import graph
from samestep.experiments.taps.graph import operation
from samestep.experiments.taps.tokens import SITE, Site, Source

_SUMS = (
    "Add",
    "Sub",
    "Mul",
    "Div",
    "Neg",
    "ToCopy",
    "Squeeze",
    "View",
    "Clone",
    "Reshape",
    "Alias",
    "_DDPSink",
    "DDPSink",
)
_REDUCTIONS, _STACKS = ("Dot", "Mean", "Sum"), ("Cat", "Stack")


@dataclass
class Term:
    """One scalar: the operation that made it, ∂L/∂term once a gradient came by, and the sources below it."""

    node: Node
    factor: Tensor | None = None
    sources: list[int] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The operation, as PyTorch calls it."""
        return operation(self.node)

    @property
    def line(self) -> str | None:
        """Where it was called, if it was a loss of PyTorch's."""
        site: Site | None = graph.metadata(self.node).get(SITE)
        return site.line if site else None


def terms(roots: list[Node], sources: list[Source]) -> tuple[list[Term], list[Callable[[], None]]]:
    """The terms of a sum and the hooks that read their factors; none where there is one term only."""
    found = sorted(dict.fromkeys(_leaves(roots)), key=graph.sequence)
    if len(found) < 2:
        return [], []
    made, hooks = [], []
    numbers = {source.node: i for i, source in enumerate(sources)}
    for node in found:
        below = graph.walk([node], stops=numbers)
        term = Term(node, sources=sorted(numbers[each] for each in below.nodes if each in numbers))
        made.append(term)
        hooks.append(_hooked(term))
    return made, hooks


def _hooked(term: Term) -> Callable[[], None]:
    def read(gradients: tuple[Tensor | None, ...]) -> None:
        given = next((each for each in gradients if each is not None), None)
        if given is not None and given.numel() == 1:
            with torch.no_grad():
                value = given.detach().double().reshape(())
                term.factor = value if term.factor is None else term.factor + value

    remove: Callable[[], None] = term.node.register_prehook(read).remove
    return remove


def _leaves(roots: list[Node]) -> Iterator[Node]:
    """Scalar nodes that are no sum, product or copy of scalars."""
    todo, known = deque(roots), set(roots)
    while todo:
        node = todo.popleft()
        scalars = _combined(node)
        if not scalars:
            yield node
            continue
        fresh = [child for child in dict.fromkeys(scalars) if child not in known]
        known.update(fresh)
        todo.extend(fresh)


def _combined(node: Node) -> list[Node]:
    """The scalars that this one is a sum or product of, through a stack of them, too; none if of something else."""
    name = operation(node)
    below = [(child, index) for child, index in node.next_functions if child is not None]
    if name.endswith("DDPSink"):
        return [child for child, index in below if _makes_scalar(child, index)]
    if not name.startswith((*_SUMS, *_REDUCTIONS, *_STACKS)):
        return []
    found: list[Node] = []
    for child, index in below:
        if _makes_scalar(child, index):
            found.append(child)
        elif name.startswith(_STACKS) or not (inner := _combined_in_a_stack(child)):
            return []
        else:
            found += inner
    return found


def _combined_in_a_stack(node: Node) -> list[Node]:
    """The same of a tensor that is made of stacked scalars by sums and products."""
    return _combined(node) if operation(node).startswith((*_SUMS, *_STACKS)) else []


def _makes_scalar(node: Node, index: int) -> bool:
    shapes = graph.outputs(node)
    return index < len(shapes) and all(size == 1 for size in shapes[index])
