"""Where losses are called in the reader's script, and the targets of those that never show their tokens."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from samestep.experiments.taps import graph, sites
from samestep.experiments.taps.patches import Function, Patches
from samestep.experiments.taps.tokens import SITE, TARGET, Site, Target

LOSSES = (
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "cross_entropy",
    "ctc_loss",
    "huber_loss",
    "kl_div",
    "log_softmax",
    "mse_loss",
    "nll_loss",
    "smooth_l1_loss",
)


def install(patches: Patches) -> None:
    """Note the line of every call on the node that it makes. The loss itself is PyTorch's, and so is its result."""
    for name in LOSSES:
        if hasattr(functional, name):
            patches.wrap_in_place(functional, name, _called)
    if hasattr(functional, "linear_cross_entropy"):  # new in torch 2.13: may make its gradients in the forward
        patches.wrap(functional, "linear_cross_entropy", _fused)


def _called(result: Any) -> None:
    if isinstance(result, Tensor) and result.grad_fn is not None:
        graph.metadata(result.grad_fn).setdefault(SITE, Site(sites.line()))


def _fused(original: Function, input: Tensor, linear_weight: Tensor, target: Tensor, **more: Any) -> Any:
    result = original(input, linear_weight, target, **more)
    if isinstance(result, Tensor) and result.grad_fn is not None and not torch.compiler.is_compiling():
        node = result.grad_fn
        graph.metadata(node).setdefault(SITE, Site(sites.line()))
        if not node.name().startswith("NllLoss") and not more.get("label_smoothing"):
            ignored = more.get("ignore_index")
            graph.metadata(node)[TARGET] = Target(
                "linear_cross_entropy", target, -100 if ignored is None else ignored,
                more.get("reduction", "mean"), more.get("weight"),
            )  # fmt: skip
    return result
