"""What cannot be seen by these taps, and what a reader of their numbers has to know: recognised by what is there.

Codes of `unsupported`: fsdp1, optimizer_in_backward, tensor_parallel, pipeline, context_parallel, lbfgs,
compiled_autograd.
Codes of `noticed`: communication_hook, batch_statistics, custom_function, compiled_loss, deepspeed,
collectives_in_step.
"""

import sys
from collections.abc import Callable, Sequence
from typing import Any

from torch import nn
from torch.autograd.graph import Node

from samestep.experiments.taps import graph
from samestep.experiments.taps.graph import Walk, operation
from samestep.experiments.taps.parameters import Parameters
from samestep.experiments.taps.patches import Patches
from samestep.experiments.taps.tokens import Source

_FSDP1 = "torch.distributed.fsdp.fully_sharded_data_parallel"
_CONTEXT = "torch.distributed.tensor.experimental._context_parallel._attention"
_STAGE = "torch.distributed.pipelining.stage"
_THEIR_OWN = ("torch", "deepspeed", "accelerate", "transformers", "lightning", "trl")
"""Packages whose autograd functions hand gradients on as they are, or are covered by the residual."""


def install(patches: Patches, parameters: Parameters, listener: Any, alive: Sequence[Any]) -> None:
    """Hear of wrappers when they are made; `alive`: those that are there already."""

    def refuse(code: str) -> Callable[..., Any]:
        def made(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            listener.unsupported(code)
            return original(*args, **kwargs)

        return made

    def fsdp1(module: Any) -> None:
        patches.wrap(module.FullyShardedDataParallel, "__init__", refuse("fsdp1"))
        if _those(alive, module.FullyShardedDataParallel):
            listener.unsupported("fsdp1")

    def pipeline(module: Any) -> None:
        patches.wrap(module._PipelineStageBase, "__init__", refuse("pipeline"))
        if _those(alive, module._PipelineStageBase):
            listener.unsupported("pipeline")

    def context(module: Any) -> None:
        for name in ("_enable_context_parallel_dispatcher_impl", "_enable_context_parallel_dispatcher"):
            if hasattr(module, name):  # everything that cuts sequences ends in one of them
                patches.wrap(module, name, refuse("context_parallel"))

    def hooked(original: Callable[..., Any], model: Any, state: Any, hook: Any) -> Any:
        listener.noticed("communication_hook", getattr(hook, "__name__", type(hook).__name__))
        return original(model, state, hook)

    parameters.install(patches, alive, lambda: listener.unsupported("tensor_parallel"))
    patches.when_imported(_FSDP1, fsdp1)
    patches.when_imported(_STAGE, pipeline)
    patches.when_imported(_CONTEXT, context)
    patches.wrap(nn.parallel.DistributedDataParallel, "register_comm_hook", hooked)


def _those(alive: Sequence[Any], kind: type) -> list[Any]:
    return [thing for thing in alive if issubclass(type(thing), kind)]


def look(parameters: Parameters, listener: Any) -> None:
    """Before a backward: what is there by now."""
    if parameters.unowned_shards():  # before any gradient of theirs is looked at
        listener.unsupported("tensor_parallel")
    compiled = sys.modules.get("torch._dynamo.compiled_autograd")
    if compiled is not None and getattr(compiled, "compiled_autograd_enabled", False):
        listener.unsupported("compiled_autograd")


def read_losses(seen: Walk, sources: list[Source], listener: Any) -> None:
    """Losses that may couple the rows of a batch, and losses that a compiler has hidden."""
    if not sources and any(operation(node) == "CompiledFunction" for node in seen.nodes):
        listener.noticed("compiled_loss", "")
    for source in sources:
        source.product = source.target is not None and _both_computed(source.node)


def _both_computed(node: Node) -> bool:
    """Whether the logits are a product of two things that both depend on parameters, none of them a parameter."""
    seen = graph.walk([node])
    products = [end for end in seen.ends if operation(end).startswith(("Mm", "Bmm", "Addmm"))]
    return any(sum(not _is_parameter(child) for child in graph.children(product)) >= 2 for product in products)


def _is_parameter(node: Node) -> bool:
    below = graph.below_views(node)
    return below is not None and operation(below) == "AccumulateGrad"


def read_model(roots: list[Node], listener: Any) -> None:
    """Once: what lies in the model."""
    functions = set()
    for node in graph.walk(roots, into_model=True).nodes:
        name = operation(node)
        if name.startswith(("NativeBatchNorm", "CudnnBatchNorm", "MiopenBatchNorm")) and _trains(node):
            listener.noticed("batch_statistics", "BatchNorm")
        elif name.startswith("SyncBatchNorm"):
            listener.noticed("batch_statistics", "SyncBatchNorm")
        elif graph.is_function(node):
            made_by = type(node)._forward_cls  # type: ignore[attr-defined]
            if not made_by.__module__.startswith(_THEIR_OWN):
                functions.add(made_by.__name__)
    for function in sorted(functions):
        listener.noticed("custom_function", function)


def _trains(node: Node) -> bool:
    return bool(getattr(node, "_saved_training", True))
