"""Recognise token losses in the graph of a backward, and read every token's weight where its gradient passes.

With ℓ_i the loss of token i and L the scalar that is differentiated, the local weight is w_i = ∂L/∂ℓ_i. It is read
from gradients that the engine computes anyway:

    nll_loss                 g / Σ class weights (mean) or g (sum, none), times the class weight of the target
    log-probabilities        −Σ_v ∂L/∂log p[i, v]: holds for every target distribution that sums to 1
    their gather             −g: one number a token
    element-wise losses      g / numel (mean) or g (sum, none)
    marked by hand           g of the tensor that was marked

Which tokens there are is known where the targets are (nll_loss); elsewhere they are those whose weight is not zero.
What is made of log-probabilities by hand is recognised in `normalised`.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import Node

from samestep.experiments.taps import graph, normalised
from samestep.experiments.taps.graph import Walk, operation
from samestep.experiments.taps.tokens import MARK, SITE, TARGET, Marked, Source, Target

ELEMENTWISE = ("BinaryCrossEntropy", "Huber", "MseLoss", "SmoothL1", "SoftMargin", "MultiMargin", "MultilabelMargin")
PER_SAMPLE = ("CtcLoss",)
LOG_PROBABILITIES = {"ChunkedLogProbFunction": 0}
"""Python functions whose output of that number is a log-probability a token (TRL 1.16)."""
REDUCTIONS = ("none", "mean", "sum")

Remove = Callable[[], None]


def sources(roots: list[Node]) -> tuple[Walk, list[Source], list[Remove]]:
    """The walk, a source for every loss found, and how to take their hooks off again after the backward."""
    seen, found = _searched(roots, into_model=False)
    if not found:
        seen, found = _searched(roots, into_model=True)
    hooks = [hook for source, hook in found if hook is not None]
    return seen, [source for source, _ in found], hooks


def _searched(roots: list[Node], into_model: bool) -> tuple[Walk, list[tuple[Source, Remove | None]]]:
    seen = graph.walk(roots, into_model=into_model)
    tops = _tops(seen)
    seen = graph.walk(roots, stops=tops, into_model=into_model) if tops else seen
    return seen, list(_read(seen, tops))


def _tops(seen: Walk) -> dict[Node, str]:
    """Nodes of losses with what each is; where one lies below another, the walk from the roots stops at the upper."""
    tops: dict[Node, str] = {}
    for node in seen.nodes:
        name = operation(node)
        if MARK in graph.metadata(node):
            tops[node] = "marked"
        elif TARGET in graph.metadata(node):
            tops[node] = "opaque"
        elif name in LOG_PROBABILITIES:
            tops[node] = "function"
        elif normalised.holds_all_classes(node):
            tops[node] = "log_softmax"
        elif name.startswith(ELEMENTWISE):
            tops[node] = "elementwise"
        elif name.startswith(PER_SAMPLE):
            tops[node] = "per_sample"
        elif normalised.is_picked_before(node) or (name == "Gather" and normalised.is_picked_beside(seen, node)):
            tops[node] = "gather"
    return tops


def _read(seen: Walk, tops: dict[Node, str]) -> Iterator[tuple[Source, Remove | None]]:
    """Sources in the order in which the forward made them."""
    reachable = set(seen.nodes)
    readers = {
        "marked": _marked,
        "opaque": _opaque,
        "function": _function,
        "elementwise": _elementwise,
        "per_sample": _per_sample,
        "gather": _gather,
    }
    for node in sorted((node for node in tops if node in reachable), key=graph.sequence):
        if tops[node] == "log_softmax":
            yield from _log_probabilities(seen, node)
        else:
            yield readers[tops[node]](node)
    if not any(kind == "log_softmax" for kind in tops.values()):
        for node in seen.of("NllLoss"):  # of log-probabilities that come from somewhere else
            yield _nll(node)


def _log_probabilities(seen: Walk, node: Node) -> Iterator[tuple[Source, Remove | None]]:
    """Read where one number a token is picked, where there is such a place; else the whole row.

    Label smoothing hangs a sum over the classes beside what is picked: the two are one loss, and the row tells both.
    """
    above = seen.above(node)
    losses = [parent for parent in above if operation(parent).startswith("NllLoss")]
    gathers = [parent for parent in above if operation(parent) == "Gather"]
    others = [parent for parent in above if parent not in (*losses, *gathers)]
    if len(losses) + len(gathers) == 1 and others and all(map(_sums_classes, others)):
        yield _rows(node, _known_target(losses[0]) if losses else None)
    elif losses:
        for parent in losses:
            yield _rows(node, _known_target(parent)) if graph.is_packed(parent, "target") else _nll(parent)
    elif gathers:
        for parent in gathers:
            yield _gather(parent)
    else:
        yield _rows(node, None)


def _sums_classes(node: Node) -> bool:
    """The smoothing of a label: a sum over the classes, perhaps weighted by constants."""
    return operation(node) in ("Mean", "Sum") or (operation(node) == "Mul" and len(graph.children(node)) == 1)


def _nll(node: Node) -> tuple[Source, Remove | None]:
    saved: Any = node
    target, ignored = saved._saved_target, graph.signed(saved._saved_ignore_index)
    weight, reduction = saved._saved_weight, REDUCTIONS[saved._saved_reduction]
    valid = (target != ignored).detach()
    importance = None if weight is None else weight.detach().double()[target.clamp(min=0)] * valid
    source = Source(
        "nll_loss", node, reduction=reduction, valid=valid.reshape(-1), target=target.detach().reshape(-1),
        shape=_without_ones(target) if target.dim() > 1 else _rows_and_columns(node) or tuple(target.shape),
        importance=None if importance is None else importance.reshape(-1), classes=_classes(node),
    )  # fmt: skip

    def read(gradients: tuple[Tensor | None, ...]) -> None:
        if gradients[0] is None:
            return
        given = gradients[0].detach().double()
        share = valid.double() if importance is None else importance
        if reduction == "mean":
            share = share / share.sum()
        source.add(given * share)

    return source, _hooked(node, read)


def _rows(node: Node, known: Target | None) -> tuple[Source, Remove | None]:
    """The sum of a row of ∂L/∂log p; `known`: the targets, where a loss that tells them hangs above."""
    axis = normalised.axis(node)
    source = Source("log_softmax", node, shape=_rows_and_columns(node), classes=_classes(node))
    if known is not None:
        source.target = known.target.reshape(-1)
        source.valid = (known.target != known.ignored).reshape(-1)
        source.reduction = known.reduction
        if known.weight is not None:
            source.importance = known.weight.double()[known.target.clamp(min=0)].reshape(-1) * source.valid
            source.smoothed_importance = known.weight.double().mean()

    def read(gradients: tuple[Tensor | None, ...]) -> None:
        if gradients[0] is not None:
            summed = -gradients[0].detach().sum(axis, dtype=torch.float64)
            source.shape = source.shape or tuple(summed.shape)
            source.add(summed)

    return source, _hooked(node, read)


def _gather(node: Node) -> tuple[Source, Remove | None]:
    return _of_output(Source("gather", node), 0, sign=-1)


def _function(node: Node) -> tuple[Source, Remove | None]:
    name = operation(node)
    return _of_output(Source(name, node), LOG_PROBABILITIES[name], sign=-1)


def _per_sample(node: Node) -> tuple[Source, Remove | None]:
    return _of_output(Source("ctc_loss", node), 0, sign=1)


def _marked(node: Node) -> tuple[Source, Remove | None]:
    mark: Marked = graph.metadata(node)[MARK]
    source = Source("marked", node, shape=mark.shape)
    if mark.valid is not None:
        source.valid, source.reduction = mark.valid.reshape(-1), "marked"
    return _of_output(source, mark.output, sign=1)


def _of_output(source: Source, output: int, sign: int) -> tuple[Source, Remove | None]:
    def read(gradients: tuple[Tensor | None, ...]) -> None:
        given = gradients[output]
        if given is not None:
            source.shape = source.shape or _without_last_one(tuple(given.shape))
            source.add(sign * given.detach().double())

    return source, _hooked(source.node, read)


def _opaque(node: Node) -> tuple[Source, Remove | None]:
    """A fused loss whose targets were seen where it was called: every valid token gets the same part of g."""
    known: Target = graph.metadata(node)[TARGET]
    valid = known.target != known.ignored
    importance = None if known.weight is None else known.weight.double()[known.target.clamp(min=0)] * valid
    source = Source(
        known.name, node, reduction=known.reduction, shape=tuple(known.target.shape), valid=valid.reshape(-1),
        target=known.target.reshape(-1), importance=None if importance is None else importance.reshape(-1),
    )  # fmt: skip

    def read(gradients: tuple[Tensor | None, ...]) -> None:
        if gradients[0] is not None:
            share = valid.double() if importance is None else importance
            source.add(gradients[0].detach().double() * (share / share.sum() if known.reduction == "mean" else share))

    return source, _hooked(node, read)


def _elementwise(node: Node) -> tuple[Source, Remove | None]:
    saved: Any = node
    reduction = REDUCTIONS[getattr(node, "_saved_reduction", 0)]
    shape = _input_shape(node)
    weight = getattr(saved, "_saved_weight", None) if hasattr(node, "_raw_saved_weight") else None
    source = Source(_worded(operation(node)), node, reduction=reduction, shape=shape)

    def read(gradients: tuple[Tensor | None, ...]) -> None:
        if gradients[0] is None:
            return
        given = gradients[0].detach().double()
        if reduction != "none" and shape is not None:
            given = (given / (torch.Size(shape).numel() if reduction == "mean" else 1)).expand(shape)
        source.shape = source.shape or tuple(given.shape)
        source.add(given if weight is None else given * weight.detach().double())

    return source, _hooked(node, read)


def _hooked(node: Node, read: Callable[[tuple[Tensor | None, ...]], None]) -> Remove:
    """Run `read` on what arrives at the node; the handle must go, or a second backward would read twice."""

    def hook(gradients: tuple[Tensor | None, ...]) -> None:
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            read(gradients)

    remove: Remove = node.register_prehook(hook).remove
    return remove


def _known_target(node: Node) -> Target | None:
    """The targets of an nll_loss: saved ones, or those seen at the call if reading them would compute them again."""
    if (seen := graph.metadata(node).get(SITE)) is not None and seen.target is not None:
        known: Target = seen.target
        return known
    if graph.is_packed(node, "target"):
        return None
    saved: Any = node
    return Target(
        "nll_loss", saved._saved_target, graph.signed(saved._saved_ignore_index), REDUCTIONS[saved._saved_reduction],
        saved._saved_weight,
    )  # fmt: skip


def _without_ones(target: Tensor) -> tuple[int, ...]:
    """[batch, time] of the [batch, 1, time] that labels with classes in the second axis become."""
    return tuple(size for size in target.shape if size != 1) if target.dim() > 2 else tuple(target.shape)


def _rows_and_columns(node: Node) -> tuple[int, ...] | None:
    """[batch, time] from the view that flattened the logits; None where there was none."""
    current: Node | None = node
    for _ in range(8):
        current = next(iter(graph.children(current)), None) if current is not None else None
        if current is None:
            return None
        if operation(current).startswith(("View", "UnsafeView", "Reshape")):
            sizes = getattr(current, "_saved_self_sym_sizes", ())
            if len(sizes) >= 3:
                return tuple(int(size) for size in sizes[:-1])
        elif not (graph.is_view(current) or operation(current) == "LogSoftmax"):
            return None
    return None


def _classes(node: Node) -> int | None:
    """The size of the axis that is normalised."""
    below = graph.below_views(next(iter(graph.children(node)), None)) if operation(node) != "LogSoftmax" else node
    shapes = graph.outputs(below) if below is not None else []
    return shapes[0][-1] if shapes and shapes[0] else None


def _input_shape(node: Node) -> tuple[int, ...] | None:
    below = next(iter(graph.children(node)), None)
    index = next((i for child, i in node.next_functions if child is below), 0)
    shapes = graph.outputs(below) if below is not None else []
    return shapes[index] if index < len(shapes) else None


def _without_last_one(shape: tuple[int, ...]) -> tuple[int, ...]:
    return shape[:-1] if len(shape) > 1 and shape[-1] == 1 else shape


def _worded(name: str) -> str:
    """mse_loss of MseLoss."""
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("_")
