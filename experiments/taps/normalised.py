"""Where log-probabilities are made: by PyTorch's own function, or by hand from exponentials and their sums.

With the logits z and the classes v of a token, all of these are log p[i, v]:

    log_softmax(z)    log(softmax(z))    log(exp(z) / Σ exp(z))    z − logsumexp(z)    z − log(Σ exp(z))

and each may be picked at the target before the logarithm, or before the subtraction. A shift of z that is the same for
all classes (its maximum) and a small number that keeps the logarithm finite change nothing that is read here.
"""

from collections.abc import Iterator

from torch.autograd.graph import Node

from samestep.experiments.taps import graph
from samestep.experiments.taps.graph import Walk, operation

_PICKS = ("Gather", "Index")
_MANY = 4
"""Operations between a logarithm and what it is taken of."""


def holds_all_classes(node: Node) -> bool:
    """Its output holds log-probabilities of every class."""
    name = operation(node)
    return name == "LogSoftmax" or (name in ("Log", "Sub") and _normaliser(node) is not None)


def is_picked_before(node: Node) -> bool:
    """The logarithm of probabilities from which one a token was picked."""
    return operation(node) == "Log" and (pick := _below(node, _PICKS)) is not None and _probabilities(pick) is not None


def is_picked_beside(seen: Walk, gather: Node) -> bool:
    """A logit picked from those that are normalised beside it."""
    base = graph.below_views(_first(gather))
    return base is not None and any(_summed(node) is base for node in seen.of("Logsumexp", "Log"))


def axis(node: Node) -> int:
    """The axis of the classes in the output of a node that holds them all."""
    made_by = node if operation(node) == "LogSoftmax" else _normaliser(node)
    saved = getattr(made_by, "_saved_dim", -1)
    return graph.signed(saved[0] if isinstance(saved, tuple) else saved)


def _normaliser(node: Node) -> Node | None:
    """The node that knows the axis: a softmax, or the sum of exponentials."""
    if operation(node) == "Log":
        return _probabilities(node)
    children = graph.children(node)
    if len(children) != 2 or (base := graph.below_views(children[0])) is None:
        return None
    return _sum_below(children[1]) if _summed(children[1]) is base else None


def _probabilities(node: Node) -> Node | None:
    """The softmax below, or the sum by which exponentials were divided by hand."""
    below = _below(node, ("Softmax", "Div"))
    if below is None or operation(below) == "Softmax":
        return below
    children = graph.children(below)
    total = graph.below_views(children[1]) if len(children) == 2 else None
    if total is None or not _sums_one_axis(total):
        return None
    both = [graph.below_views(each) for each in (children[0], _first(total))]
    if [_named(each) for each in both] != ["Exp", "Exp"]:
        return None
    return total if graph.below_views(_first(both[0])) is graph.below_views(_first(both[1])) else None


def _below(node: Node, wanted: tuple[str, ...]) -> Node | None:
    """The first of these below, past views, shifts and clamps."""
    current = _first(node)
    for _ in range(_MANY):
        if current is None:
            return None
        if operation(current) in wanted:
            return current
        if not (graph.is_view(current) or operation(current).startswith(("Add", "Clamp"))):
            return None
        current = _first(current)
    return None


def _summed(node: Node) -> Node | None:
    """The logits whose exponentials this sums and takes the logarithm of; a maximum taken out before comes back."""
    total = _sum_below(node)
    if total is None or operation(total) == "Logsumexp":
        return graph.below_views(_first(total))
    exponential = graph.below_views(_first(total))
    assert exponential is not None
    shifted = graph.below_views(_first(exponential))
    if _named(shifted) == "Sub" and _named(graph.below_views(node)) == "Add":
        return graph.below_views(_first(shifted))
    return shifted


def _sum_below(node: Node | None) -> Node | None:
    """A logsumexp, or the sum in a log(Σ exp(z)) by hand, with or without a maximum that is added again."""
    for current in _alternatives(graph.below_views(node)):
        if operation(current) == "Logsumexp":
            return current
        total = graph.below_views(_first(current)) if operation(current) == "Log" else None
        if total is not None and _sums_one_axis(total) and _named(graph.below_views(_first(total))) == "Exp":
            return total
    return None


def _sums_one_axis(node: Node) -> bool:
    """A sum over everything is one over the classes only where there is a single token without an axis of its own."""
    if operation(node) != "Sum":
        return False
    below = _first(node)
    return len(getattr(node, "_saved_dim", ())) == 1 or (below is not None and len(graph.outputs(below)[0]) == 1)


def _alternatives(node: Node | None) -> Iterator[Node]:
    if node is None:
        return
    yield node
    if operation(node) == "Add":
        yield from filter(None, map(graph.below_views, graph.children(node)))


def _named(node: Node | None) -> str | None:
    return None if node is None else operation(node)


def _first(node: Node | None) -> Node | None:
    return None if node is None else next(iter(graph.children(node)), None)
