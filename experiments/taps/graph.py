"""The autograd graph of a backward, from its roots down to where the model begins."""

import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from torch.autograd.graph import Node

LIMIT = 20_000
"""Nodes after which a walk gives up."""

_SUFFIX = re.compile(r"Backward\d*$")
_MODEL = (
    "AccumulateGrad",
    "Addbmm",
    "Addmm",
    "Baddbmm",
    "Bmm",
    "CompiledFunction",
    "Convolution",
    "Cudnn",
    "Embedding",
    "FusedRms",
    "Linear",
    "Mkldnn",
    "Mm",
    "NativeBatchNorm",
    "NativeGroupNorm",
    "NativeLayerNorm",
    "Scaled",
)
"""Operations with which a model begins below its loss; a walk for losses stops there first."""
_VIEWS: tuple[str, ...] = (
    "Alias",
    "Clone",
    "Expand",
    "Reshape",
    "Select",
    "Slice",
    "Split",
    "Squeeze",
    "ToCopy",
    "Transpose",
    "Unbind",
)
_VIEWS += ("T", "Permute", "Unsqueeze", "UnsafeView", "View", "Contiguous")


def operation(node: Node) -> str:
    """`NllLoss` of NllLossBackward0; a Python function's own name."""
    return _SUFFIX.sub("", node.name().rpartition("::")[2])


def metadata(node: Node) -> dict[str, Any]:
    """What has been noted on the node; it lives and dies with the graph."""
    noted: Any = node.metadata
    return cast("dict[str, Any]", noted)


def children(node: Node) -> list[Node]:
    """What the gradient goes to next."""
    return [child for child, _ in node.next_functions if child is not None]


def outputs(node: Node) -> list[tuple[int, ...]]:
    """Shapes of what the node made in the forward."""
    described: Sequence[Any] = getattr(node, "_input_metadata", ())
    return [tuple(each.shape) for each in described]


def is_scalar(node: Node) -> bool:
    """All that it made has one element, or none."""
    shapes = outputs(node)
    return bool(shapes) and all(size == 1 for shape in shapes for size in shape)


def is_view(node: Node) -> bool:
    """It hands its input on, reshaped, selected from, or in another precision."""
    return operation(node).startswith(_VIEWS)


def below_views(node: Node | None) -> Node | None:
    """The node below a chain of views, itself if it is none."""
    while node is not None and is_view(node):
        node = next(iter(children(node)), None)
    return node


def is_packed(node: Node, saved: str) -> bool:
    """Whether reading this saved tensor would run somebody's code: a checkpoint computes it again."""
    raw = getattr(node, f"_raw_saved_{saved}", None)
    return getattr(raw, "unpack_hook", None) is not None


def signed(index: int) -> int:
    """A saved integer: a negative one arrives as an unsigned number of 64 bits."""
    return index - (1 << 64) if index >= 1 << 63 else index


def is_function(node: Node) -> bool:
    """Made by a torch.autograd.Function written in Python."""
    return hasattr(type(node), "_forward_cls")


@dataclass
class Walk:
    """Nodes in the order in which they were met, and who hands gradients to each."""

    roots: list[Node]
    nodes: list[Node] = field(default_factory=list)
    parents: dict[Node, list[Node]] = field(default_factory=dict)
    ends: list[Node] = field(default_factory=list)

    def of(self, *operations: str) -> Iterator[Node]:
        """Nodes whose operation begins with one of these, as the forward made them."""
        found = [node for node in self.nodes if operation(node).startswith(operations)]
        return iter(sorted(found, key=sequence))

    def above(self, node: Node) -> list[Node]:
        """Its parents, views skipped."""
        found, todo = [], deque(self.parents.get(node, ()))
        while todo:
            parent = todo.popleft()
            if is_view(parent) and parent not in self.roots:
                todo.extend(self.parents.get(parent, ()))
            else:
                found.append(parent)
        return found


def sequence(node: Node) -> int:
    """The order in which the forward made it."""
    number: int = node._sequence_nr()
    return number


def walk(roots: Iterable[Node], stops: Iterable[Node] = (), into_model: bool = False) -> Walk:
    """Everything below the roots, down to the model, or through it. Below `stops` nothing is looked at."""
    seen = Walk(list(dict.fromkeys(roots)))
    known, todo, stopping = set(seen.roots), deque(seen.roots), set(stops)
    while todo and len(seen.nodes) < LIMIT:
        node = todo.popleft()
        seen.nodes.append(node)
        if node in stopping or operation(node) == "AccumulateGrad":
            continue
        if not into_model and operation(node).startswith(_MODEL):
            seen.ends.append(node)
            continue
        for child in children(node):
            seen.parents.setdefault(child, []).append(node)
            if child not in known:
                known.add(child)
                todo.append(child)
    return seen
