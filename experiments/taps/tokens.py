"""What is known of the tokens of one loss, and how a loss is marked where it is made."""

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.autograd.graph import Node

from samestep.experiments.taps import graph

MARK, SITE, TARGET = "samestep.tokens", "samestep.site", "samestep.target"
"""Keys in a node's metadata, which lives and dies with the graph."""


@dataclass(frozen=True)
class Target:
    """The targets of a loss as they were given to it; `reduction`: none, mean or sum."""

    name: str
    target: Tensor
    ignored: int
    reduction: str
    weight: Tensor | None = None


@dataclass(frozen=True)
class Site:
    """Where in the reader's script a loss was called."""

    line: str | None
    target: Target | None = None


@dataclass(frozen=True)
class Marked:
    """A per-element loss that the reader marked: its shape, which elements count, which output of its node it is."""

    shape: tuple[int, ...]
    valid: Tensor | None
    output: int


@dataclass
class Source:
    """The tokens of one loss node in one backward.

    kind         what it is: nll_loss, log_softmax, gather, mse_loss, marked, …
    weights      [tokens] float64, ∂L/∂ℓ of every entry, flattened; None until a gradient came by
    valid        [tokens] bool where the targets tell which entries count
    importance   [tokens] float64: the class weight of each target, where there is one
    shape        of the entries before flattening, [batch, time] where it could be found
    reduction    none, mean or sum of the loss itself; "" where it has none
    product      the logits are products of two things that both depend on parameters, as in a contrastive loss
    """

    kind: str
    node: Node
    reduction: str = ""
    shape: tuple[int, ...] | None = None
    valid: Tensor | None = None
    target: Tensor | None = None
    importance: Tensor | None = None
    smoothed_importance: Tensor | None = None
    classes: int | None = None
    product: bool = False
    weights: Tensor | None = field(default=None)

    @property
    def line(self) -> str | None:
        """Where the loss was called."""
        site: Site | None = graph.metadata(self.node).get(SITE)
        return site.line if site else None

    def add(self, weights: Tensor) -> None:
        """A gradient came by: once, or more often when a region is computed again."""
        flat = weights.reshape(-1)
        self.weights = flat if self.weights is None else self.weights + flat


def mark(loss: Tensor, mask: Tensor | None = None) -> Tensor:
    """Say that this tensor holds one loss for each token; it is returned unchanged.

    mask   of its shape, true (or not zero) where an entry is a token; None: all are

    Raises ValueError if the shapes differ.
    """
    if mask is not None and mask.shape != loss.shape:
        raise ValueError(f"mask has shape {list(mask.shape)}, loss {list(loss.shape)}: they must be the same")
    if loss.grad_fn is not None and not torch.compiler.is_compiling():
        valid = None if mask is None else mask.detach().bool().clone()
        graph.metadata(loss.grad_fn)[MARK] = Marked(tuple(loss.shape), valid, loss.output_nr)
    return loss
